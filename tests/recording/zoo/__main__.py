"""`python -m tests.recording.zoo`: writes docs/watched.md anew."""

import os
import sys
import warnings


def main() -> int:
    """Examine everything and write the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import transformers

    from tests.recording.zoo.page import PAGE, page

    transformers.logging.set_verbosity_error()
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
