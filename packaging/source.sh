# The common beginning of build-deb and build-rpm: the version, and the folder with the sources of the packages.
# Sourced at the top of a checkout.

# shellcheck shell=sh disable=SC2034 # who sources this uses it
version=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' src/xpu_runtime/version.py)
git rev-parse --git-dir > /dev/null 2>&1 || {
    echo "packages are built from a git clone: its files, and the time and name of its commit, are what goes into them" >&2
    exit 1
}
COMMIT=${COMMIT:-$(git describe --always --abbrev=12 --dirty --exclude='*')}
# All times in packages are the commit's, so that two builds of it give the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export COMMIT SOURCE_DATE_EPOCH
umask 022
# If make runs us, its variables would reach our builds, for example the CC of another build.
unset MAKEFLAGS MFLAGS MAKELEVEL || true

# The tracked files and the wheels: copy_source BUILD FOLDER
copy_source() {
    mkdir -p "$2/build"
    git ls-files -z | xargs -0 cp --parents -t "$2"
    cp -a "$1/wheels" "$2/build/"
}

# Replaces each line @NAME@ by packaging/scripts/NAME.sh: the scripts of debs and rpms on the machine.
# put_scripts_in FILE [PERCENT]; PERCENT stands for a percent sign in that file.
put_scripts_in() {
    awk -v percent="${2:-%}" '
        /^@[a-z-]+@$/ {
            file = "packaging/scripts/" substr($0, 2, length($0) - 2) ".sh"
            lines = 0
            while ((getline line < file) > 0) { gsub("%", percent, line); print line; lines++ }
            if (!lines) { print FILENAME ": " file " is missing or empty" > "/dev/stderr"; exit 1 }
            close(file)
            next
        }
        { print }' "$1" > "$1.new"
    mv "$1.new" "$1"
}
