#!/usr/bin/env bash
# Installs what is missing (Debian 12 or newer, as root or with sudo), builds lanewise-train and trains a small byte
# language model on real text. Arguments go to `lanewise-train lm`, such as --steps 200; --help lists them.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

started=$SECONDS
need "${build_needs[@]}"
# A build folder that is there keeps its options: tests/run.sh builds more in the same one.
options=(-Dtests=disabled -Dbench=disabled -Dexamples=enabled -Dcuda=disabled)
[ ! -f build/configured-as ] || read -ra options <build/configured-as
configure build "${options[@]}"
build build examples/trainer/lanewise-train
say "ready after $((SECONDS - started)) s"

# Unless told otherwise the run replaces the one before.
where=(--out quickstart-out --overwrite)
for argument; do
  case $argument in
    --out | --out=*) where=() ;;
    --resume) where=(--out quickstart-out) ;;
  esac
done
build/examples/trainer/lanewise-train lm "${where[@]}" "$@" || fail "lanewise-train: exit code $?; its last lines name the cause"
say "done in $((SECONDS - started)) s"
