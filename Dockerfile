# The image of `rein`. `make image` stages its files in target/image/stage (scripts/image.sh) and builds it with buildah.
FROM scratch
# Shared libraries and certificate authorities from Debian packages.
COPY system/ /
# The binary, its licences and the demo model.
COPY rein/ /
# Where a volume for downloaded models goes: a new one is made from this directory, with its owner.
COPY --chown=65532:65532 cache/ /var/cache/rein/
ENV HF_HOME=/var/cache/rein
ARG VERSION
LABEL org.opencontainers.image.title=rein \
      org.opencontainers.image.description="Model server for mixture-of-experts language models" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
# Which parts of the driver the NVIDIA container runtime mounts; nothing without GPUs.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["/usr/bin/rein"]
