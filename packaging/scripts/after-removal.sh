# Those in /run/xpu/callers (before-removal.sh) that still run, a line each.
who_calls_us() {
    [ -r /run/xpu/callers ] || return 0
    while read -r pid began what; do
        # A configuration file that could not be changed is 1's, which runs always: until the file names us no more.
        [ "$pid" != 1 ] || grep -qs /usr/bin/xpu-container-runtime "${what%%, until*}" || continue
        [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)" != "$began" ] || echo "$what"
    done < /run/xpu/callers | sort -u
}

# Keeps the paths of the runtime and its hook good for those who call them, or removes what stood in for them. Its
# argument is what the operator does when they are gone.
keep_paths_that_are_called() {
    program=/usr/bin/xpu-container-runtime
    hook=/usr/bin/xpu-container-runtime-hook
    find /usr/lib/xpu-container-runtime -depth -type d -empty -delete 2>/dev/null || true
    callers=$(who_calls_us)
    if [ -z "$callers" ]; then
        rm -f $program.kept
        # Not what somebody has installed there since.
        ! grep -qs '^# In the place of the removed' $hook || rm -f $program $hook
        # Pages of containers that have ended since. What somebody else has mounted there is not ours to take away, or to
        # delete what is in it.
        grep -oE ' /run/xpu/(slices|sim)/[[:alnum:]/._-]+ ' /proc/self/mounts | sort -r | while read -r place; do
            umount -l "$place" || true
        done
        if grep -q ' /run/xpu/' /proc/self/mounts; then
            echo "xpu-container-runtime: /run/xpu stays: something that is not ours is mounted below it" >&2
        else
            rm -rf --one-file-system /run/xpu || true
        fi
        return 0
    fi
    if [ -e $program.kept ]; then
        mv -f $program.kept $program
        cat > $hook.new <<'END'
#!/bin/sh
# In the place of the removed package xpu-container-runtime, for the containers that still run.
[ "$1" != poststop ] || exec cat > /dev/null
echo "xpu: the package xpu-container-runtime was removed: install it again" >&2
exit 1
END
        chmod 755 $hook.new
        mv -f $hook.new $hook
    fi
    echo "xpu-container-runtime: still called by:" >&2
    echo "$callers" | sed 's/^/  /' >&2
    echo "$program and its hook stay for these: they can be stopped and deleted, containers that ask" >&2
    echo "for nothing start, and those that ask for an accelerator are refused. When they are gone:" >&2
    echo "  $1" >&2
}
