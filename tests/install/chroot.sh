#!/usr/bin/env bash
# chroot.sh [--suite NAME] [--mirror URL] [--keep] [--busy] [FOLDER]: both commands on a Debian that has none of our packages.
#
# Builds a minimal Debian (bookworm) with debootstrap in FOLDER, clones this repository's HEAD into it and runs both
# commands there as root, timed, on two processors. Bars: the first under 6 minutes, its training under 2; the second under
# 20. Takes root, debootstrap, about 3 GB and half an hour; run by hand, not by tests/run.sh. The mirror is the host's, and
# so are resolver, proxies and certificates. FOLDER (default: a temporary one) is removed at the end unless --keep is given. On a
# machine that does other things too, --busy reports the times without holding them against the bars.
set -euo pipefail

fail() {
  printf 'chroot.sh: failed: %s\n' "$1" >&2
  exit 1
}

# Mounts vanish with a mount namespace of our own, however the script ends.
if [ "${LANEWISE_CHROOT:-}" != inside ]; then
  [ "$(id -u)" -eq 0 ] || fail "needs root"
  command -v debootstrap >/dev/null || fail "needs debootstrap (Debian: debootstrap)"
  LANEWISE_CHROOT=inside exec unshare --mount --propagation private bash "$0" "$@"
fi

suite=bookworm mirror= keep=no busy=no folder=
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2 && shift ;;
    --mirror) mirror=$2 && shift ;;
    --keep) keep=yes ;;
    --busy) busy=yes ;;
    -*) fail "unknown option $1" ;;
    *) folder=$1 ;;
  esac
  shift
done
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)

if [ -z "$mirror" ]; then
  # The host's own repository for its release holds the other releases too.
  release=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    awk -v r="$release" '$2 == r && $3 == "main" {print $1; exit}')
  [ -n "$mirror" ] || fail "the host's apt sources name no mirror of $release; give --mirror URL"
fi
[ -n "$folder" ] || folder=$(mktemp -d)
mkdir -p "$folder"
[ -z "$(ls -A "$folder")" ] || fail "$folder is not empty"
tidy() {
  for mounted in proc sys dev; do
    ! mountpoint -q "$folder/$mounted" || umount -R "$folder/$mounted" || return
  done
  [ $keep = yes ] || rm -rf --one-file-system "$folder"
}
trap tidy EXIT

echo "chroot.sh: $suite in $folder"
said=$(debootstrap --variant=minbase "$suite" "$folder" "$mirror" 2>&1) || fail "debootstrap: $(tail -n 3 <<<"$said")"
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
apt-config dump | grep -iE '^Acquire::.*(proxy|CaInfo)' >"$folder/etc/apt/apt.conf.d/90host" || true
mkdir -p "$folder/etc/ssl/certs"
[ ! -f /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
mount -t proc proc "$folder/proc"
mount -t sysfs -o ro sysfs "$folder/sys"
mount --rbind /dev "$folder/dev"
git clone -q --no-hardlinks "$source" "$folder/root/lanewise"

# within SECONDS LAST-LINE COMMAND...: runs it there, and demands its exit code, last line and time.
within() {
  local bar=$1 last=$2 log=$folder/root/log began=$SECONDS took
  shift 2
  echo "chroot.sh: $*"
  taskset -c "$(taskset -cp $$ | sed 's/.*: //' | tr '-' ',' | cut -d, -f1,2)" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CI=true \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$folder" bash -c 'cd /root/lanewise && "$@"' - "$@" </dev/null 2>&1 | tee "$log" || fail "$*: exit code ${PIPESTATUS[0]}"
  took=$((SECONDS - began))
  tail -n 1 "$log" | grep -qE "$last" || fail "$*: its last line is: $(tail -n 1 "$log")"
  hold "$took" "$bar" "$*"
}

# hold SECONDS BAR WHAT
hold() {
  times+=("$1 s (bar $2 s): $3")
  [ "$1" -lt "$2" ] || [ $busy = yes ] || fail "$3: $1 s, the bar is $2 s"
}

times=()
within 360 '^quickstart\.sh: done in' bash examples/quickstart.sh
ready=$(sed -n 's/^quickstart\.sh: ready after \([0-9]*\) s$/\1/p' "$folder/root/log")
done=$(sed -n 's/^quickstart\.sh: done in \([0-9]*\) s$/\1/p' "$folder/root/log")
hold $((done - ready)) 120 "of which training"
within 1200 '^[1-9][0-9]* passed, 0 failed' bash tests/run.sh
within 60 '^quickstart\.sh: done in' bash examples/quickstart.sh --preset tiny
grep -q 'ninja: no work to do' "$folder/root/log" || fail "a later run of quickstart.sh built something again"
printf 'chroot.sh: %s\n' "${times[@]}" "both commands are green on $suite"
