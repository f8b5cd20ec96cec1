# syntax=docker/dockerfile:1
#
# SMG, a router of another project, from PyPI:
#   docker build -f deploy/router.Dockerfile -t radixloop-router:smg deploy

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE}
ARG SMG_VERSION=1.13.0
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin router \
    && pip install --no-cache-dir --disable-pip-version-check "smg==${SMG_VERSION}"
USER 10001:10001
EXPOSE 30000 29000
ENTRYPOINT ["python", "-m", "smg", "launch"]
