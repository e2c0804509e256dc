# SPDX-License-Identifier: Apache-2.0
# Ferry in an image, built from this folder:
#     docker build -t ferry . && docker run --rm ferry
# A GPU's driver and NCCL come from outside: `docker run --gpus all` and an image that has NCCL (docs/running.md).
FROM debian:bookworm-slim AS build
WORKDIR /ferry
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends ca-certificates make
COPY scripts/setup scripts/setup
RUN scripts/setup install
COPY . .
RUN make install DESTDIR=/image PREFIX=/usr/local

FROM debian:bookworm-slim
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends libcjson1 libhwloc15 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /image/ /
RUN ldconfig
CMD ["ferryrun", "--fork", "-n", "2", "--", "ferry-perf", "allreduce", "-b", "64K", "-e", "16M", "-f", "16"]
