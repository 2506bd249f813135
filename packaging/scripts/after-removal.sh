# Whether the process at /proc/PID, its argument, is root's, sees our processes and our files. Its name, words and environment
# are its own to choose; these are not.
is_the_hosts() {
    grep -qs '^Uid:.0.0.0.0$' "$1/status" &&
        [ "$(readlink "$1/ns/pid")" = "$(readlink /proc/self/ns/pid)" ] &&
        [ "$(stat -L -c %d:%i "$1/root" 2>/dev/null)" = "$(stat -c %d:%i /)" ]
}

# Those in /run/xpu/callers (before-removal.sh) that still run, a line each.
recorded_callers() {
    [ -r /run/xpu/callers ] || return 0
    while read -r pid began what; do
        # A configuration file that could not be changed is 1's, which runs always: until the file names us no more.
        [ "$pid" != 1 ] || grep -qs /usr/bin/xpu-container-runtime "${what%%, until*}" || continue
        [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)" != "$began" ] || echo "$what"
    done < /run/xpu/callers
}

# The processes that will call us to delete a container, a line each: an engine that knows us may have started it since
# /run/xpu/callers was written.
monitors() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in
            containerd-shim*)
                is_the_hosts "$process" || continue
                # What a shim writes into its bundle, where it lies.
                grep -qs /usr/bin/xpu-container-runtime "$process/cwd/runtime" "$process/cwd/options.json" || continue
                echo "container $(basename "$(readlink "$process/cwd")")" ;;
            conmon)
                is_the_hosts "$process" || continue
                words=$(tr '\0' '\n' 2>/dev/null < "$process/cmdline") || continue
                echo "$words" | grep -qE '^(--runtime=)?/usr/bin/xpu-container-runtime$' || continue
                echo "container $(echo "$words" | sed -nE '/^(-c|--cid)$/{n;p;q}')" ;;
        esac
    done | tr -c '[:print:]\n' '?'
}

who_calls_us() {
    { recorded_callers; monitors; } | sort -u
}

# Ends what starts have begun for a device: MPS's daemon and its server. The hook does that with the device's last container;
# what stands in for it does not.
end_mps() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in nvidia-cuda-mps*) ;; *) continue ;; esac
        is_the_hosts "$process" || continue
        ! grep -qsz '^CUDA_MPS_PIPE_DIRECTORY=/run/xpu/devices/mps/' "$process/environ" || kill -9 "${process#/proc/}" || true
    done
}

# What is left to an operator where no script of ours comes again: grants' folders are mounts, which rm cannot remove.
by_hand() {
    [ ! -d /run/xpu/devices/mps ] ||
        echo "grep -lsz ^CUDA_MPS_PIPE_DIRECTORY=/run/xpu/devices/ /proc/[0-9]*/environ | cut -d / -f 3 | xargs -r kill -9"
    echo "grep -o ' /run/xpu/[^ ]*' /proc/self/mounts | sort -r | xargs -r umount -l"
    echo "rm -r /usr/bin/xpu-container-runtime /usr/bin/xpu-container-runtime-hook /run/xpu"
}

# Keeps the paths of the runtime and its hook good for those who call them, or removes what stood in for them. Its
# argument is what the operator does when they are gone; "": a later call says who calls.
keep_paths_that_are_called() {
    program=/usr/bin/xpu-container-runtime
    hook=/usr/bin/xpu-container-runtime-hook
    find /usr/lib/xpu-container-runtime -depth -type d -empty -delete 2>/dev/null || true
    callers=$(who_calls_us)
    if [ -z "$callers" ]; then
        rm -f $program.kept
        # Not what somebody has installed there since.
        ! grep -qs '^# In the place of the removed' $hook || rm -f $program $hook
        # Pages of containers that have ended since, and what MPS's server had. What somebody else has mounted there is not ours to take away, or to
        # delete what is in it.
        end_mps
        grep -oE ' /run/xpu/(slices|sim|devices/mps)/[[:alnum:]/._-]+ ' /proc/self/mounts | sort -r | while read -r place; do
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
    [ -n "$1" ] || return 0
    echo "xpu-container-runtime: still called by:" >&2
    echo "$callers" | sed 's/^/  /' >&2
    echo "$program and its hook stay for these: they can be stopped and deleted, containers that ask" >&2
    echo "for nothing start, and those that ask for an accelerator are refused. When they are gone:" >&2
    echo "$1" | sed 's/^/  /' >&2
}
