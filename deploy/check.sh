#!/bin/sh
# Checks the files of this folder with the linters in requirements-lint.txt, and with promtool where it is installed.
# Needs no container engine. Run it from anywhere.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../build/deploy-lint
test -x "$tools/bin/python" || "${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check --requirement "$here/requirements-lint.txt"

cd "$here"
echo "hadolint: Dockerfile, router.Dockerfile"
"$tools/bin/hadolint" Dockerfile router.Dockerfile
echo "docker-compose config: compose.yaml, compose.cuda.yaml, compose.router.yaml"
"$tools/bin/docker-compose" -f compose.yaml config -q
"$tools/bin/docker-compose" -f compose.yaml -f compose.cuda.yaml config -q
"$tools/bin/docker-compose" -f compose.router.yaml config -q
echo "kubernetes-validate: kubernetes.yaml, kubernetes-router.yaml"
"$tools/bin/kubernetes-validate" --quiet --strict kubernetes.yaml kubernetes-router.yaml
if command -v promtool >/dev/null; then
    echo "promtool: prometheus.yml, router.yml, rules.yml and their tests"
    promtool check config --lint-fatal prometheus/prometheus.yml
    promtool check config --lint-fatal prometheus/router.yml
    promtool test rules ../tests/deploy/rules_test.yml
else
    echo "promtool is not installed: Prometheus files are not checked"
fi
