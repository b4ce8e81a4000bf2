# An image for sandboxes, for machines with a registry at hand. Without it the host's interpreter is mounted instead.
#
#   docker build -f scripts/sandbox.Dockerfile -t nightshift-sandbox:own .
#
# and in nightshift.toml:
#
#   [sandbox]
#   image = "nightshift-sandbox:own"
#
# Our own rooms are not copied: each job mounts the ones it needs, read-only, at /opt/rooms.
FROM python:3.11-slim-bookworm

COPY constraints.txt /tmp/constraints.txt
# torch first and alone: it decides by itself between the CPU and the CUDA build.
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt torch \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt \
        gguf numpy peft pyarrow pydantic pyseccomp reasoning-gym safetensors tokenizers transformers triton xgrammar \
    && rm /tmp/constraints.txt

# The mount points of a sandbox; its root is read-only.
RUN mkdir -p /channel /in /opt/rooms /out
USER 65534:65534
