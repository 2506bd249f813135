# Whether the process at /proc/PID, its argument, is root's and sees our processes and our files. A process chooses its own
# name, words and environment, but not these.
is_the_hosts() {
    grep -qs '^Uid:.0.0.0.0$' "$1/status" &&
        [ "$(readlink "$1/ns/pid")" = "$(readlink /proc/self/ns/pid)" ] &&
        [ "$(stat -L -c %d:%i "$1/root" 2>/dev/null)" = "$(stat -c %d:%i /)" ]
}

# The processes in /run/xpu/callers (before-removal.sh) that still run, a line for each.
recorded_callers() {
    [ -r /run/xpu/callers ] || return 0
    while read -r pid began what; do
        # Process 1, which always runs, stands for a configuration file that could not be changed: it counts while it names us.
        [ "$pid" != 1 ] || grep -qs /usr/bin/xpu-container-runtime "${what%%, until*}" || continue
        [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)" != "$began" ] || echo "$what"
    done < /run/xpu/callers
}

# The processes that will call us to delete a container, a line for each: an engine that knows us may have started one
# after /run/xpu/callers was written.
monitors() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in
            containerd-shim*)
                is_the_hosts "$process" || continue
                # Files that a shim writes into its bundle, its working directory.
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

# Ends the MPS daemons and servers of devices. The hook ends them with the device's last container; the program that
# replaces the hook does not.
end_mps() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in nvidia-cuda-mps*) ;; *) continue ;; esac
        is_the_hosts "$process" || continue
        ! grep -qsz '^CUDA_MPS_PIPE_DIRECTORY=/run/xpu/devices/mps/' "$process/environ" || kill -9 "${process#/proc/}" || true
    done
}

# The commands for an operator, if no script of ours runs again: grants' folders are mounts, which rm cannot remove.
by_hand() {
    [ ! -d /run/xpu/devices/mps ] ||
        echo "grep -lsz ^CUDA_MPS_PIPE_DIRECTORY=/run/xpu/devices/ /proc/[0-9]*/environ | cut -d / -f 3 | xargs -r kill -9"
    echo "grep -o ' /run/xpu/[^ ]*' /proc/self/mounts | sort -r | xargs -r umount -l"
    echo "rm -r /usr/bin/xpu-container-runtime /usr/bin/xpu-container-runtime-hook /run/xpu"
}

# Keeps programs at the paths of the runtime and its hook for running callers; without callers it removes them. Its
# argument has the operator's commands for the time after the callers; "": a later call names the callers.
keep_paths_that_are_called() {
    program=/usr/bin/xpu-container-runtime
    hook=/usr/bin/xpu-container-runtime-hook
    find /usr/lib/xpu-container-runtime -depth -type d -empty -delete 2>/dev/null || true
    callers=$(who_calls_us)
    if [ -z "$callers" ]; then
        rm -f $program.kept
        # A later installation by somebody else stays.
        ! grep -qs '^# In the place of the removed' $hook || rm -f $program $hook
        # Unmount pages of ended containers, and the folders of MPS. Mounts of somebody else, and their content, stay.
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
