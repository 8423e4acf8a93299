"""Other people's models, small and random: what `qkv.watch` must see in each of them.

    python -m tests.recording.zoo

writes `docs/watched.md` from what comes out; a test compares the page with it.
"""
