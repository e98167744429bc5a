# The set-up that quickstart.sh and tests/run.sh share; both source it. Afterwards the working directory is the root of
# the tree. A failure ends the script with a last line "NAME: failed: CAUSE".
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
self=${0##*/}

say() { printf '%s: %s\n' "$self" "$1"; }
fail() {
  printf '%s: failed: %s\n' "$self" "$1" >&2
  exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND: exit code $?"' ERR

# is_there PROBE: a command, a header that g++ finds, a library that pkg-config finds, or a path.
is_there() {
  case $1 in
    command:*) command -v "${1#*:}" >/dev/null ;;
    header:*) command -v g++ >/dev/null && printf '#include <%s>\n' "${1#*:}" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    library:*) command -v pkg-config >/dev/null && pkg-config --exists "${1#*:}" ;;
    path:*) [ -e "${1#*:}" ] ;;
  esac
}

build_needs=(
  command:g++=g++ command:meson=meson command:ninja=ninja-build command:pkg-config=pkg-config
  library:openblas=libopenblas-dev header:CLI/CLI.hpp=libcli11-dev header:nlohmann/json.hpp=nlohmann-json3-dev
  path:/usr/share/games/fortunes=fortunes path:/usr/share/sounds/alsa=alsa-utils
)

# need PROBE=PACKAGE...: installs the Debian packages whose probe finds nothing.
installed=no
need() {
  local probe missing=() log
  for probe; do
    is_there "${probe%=*}" || missing+=("${probe##*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "this system has no apt; install what these Debian packages bring: ${missing[*]}"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "not root, and no sudo; as root run: apt-get install ${missing[*]}"
    root=(sudo)
  fi
  say "installing ${missing[*]}"
  log=$(mktemp)
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    fail "apt-get could not install ${missing[*]}; its words are above"
  fi
  rm -f "$log"
  for probe; do
    is_there "${probe%=*}" || fail "${probe##*=} is installed, but ${probe%=*} is still not found"
  done
  installed=yes
}

# configure FOLDER OPTION...: sets a build folder up once. Other options reconfigure it; another Meson or compiler, or
# newly installed packages, set it up afresh, since Meson remembers what it looked for in vain.
configure() {
  local folder=$1 tools mode=()
  shift
  tools="$(meson --version) $(g++ --version | head -n 1)"
  if [ -f "$folder/build.ninja" ]; then
    if [ $installed = yes ] || [ "$(cat "$folder/configured-with" 2>/dev/null)" != "$tools" ]; then
      mode=(--wipe)
    elif [ "$(cat "$folder/configured-as" 2>/dev/null)" = "$*" ]; then
      return 0
    else
      mode=(--reconfigure)
    fi
  fi
  say "configuring $folder"
  mkdir -p "$folder"
  if ! meson setup "${mode[@]}" "$@" "$folder" >"$folder.log" 2>&1; then
    tail -n 20 "$folder.log" >&2
    fail "meson setup $folder: its words are above, all of them in $folder.log"
  fi
  mv "$folder.log" "$folder/setup.log"
  printf '%s\n' "$tools" >"$folder/configured-with"
  printf '%s\n' "$*" >"$folder/configured-as"
}

# build FOLDER TARGET...
build() {
  say "building in $1"
  ninja -C "$@" || fail "the build in $1; the first error above is the cause"
}
