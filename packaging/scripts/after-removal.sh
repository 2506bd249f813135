# Says who still calls /usr/bin/xpu-container-runtime: containers that were started by it, and a containerd that has not
# been restarted since it was configured for it. Prints a line for each.
who_calls_us() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in
            containerd-shim*)
                # A shim lies in its bundle, and keeps the runtime's name there.
                grep -qs xpu-container-runtime "$process/cwd/runtime" "$process/cwd/options.json" || continue
                echo "the container $(readlink "$process/cwd" | sed 's|.*/||')" ;;
            conmon)
                tr '\0' '\n' < "$process/cmdline" 2>/dev/null | grep -q 'xpu-container-runtime$' || continue
                echo "the container of process ${process#/proc/} (conmon)" ;;
        esac
    done
    while read -r pid began; do
        [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)" != "$began" ] ||
            echo "containerd (process $pid), until it is restarted"
    done 2>/dev/null < /run/xpu/read-before-removal || true
}

# Keeps the paths of the runtime and its hook good for those who call them, or removes what stood in for them.
keep_paths_that_are_called() {
    callers=$(who_calls_us)
    if [ -z "$callers" ]; then
        for name in xpu-container-runtime xpu-container-runtime-hook; do
            [ ! -L /usr/bin/$name ] || rm -f /usr/bin/$name
        done
        # A mount is a page of a container that was killed in a way that nobody saw.
        grep -q ' /run/xpu/' /proc/self/mounts || rm -rf /run/xpu
        return
    fi
    for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
        for runtime in runc crun; do
            [ -x "$folder/$runtime" ] || continue
            ln -sfn "$folder/$runtime" /usr/bin/xpu-container-runtime
            ln -sfn /bin/true /usr/bin/xpu-container-runtime-hook
            break 2
        done
    done
    echo "xpu-container-runtime: still called by:" >&2
    echo "$callers" | sed 's/^/  /' >&2
    echo "so that these can be stopped and deleted, /usr/bin/xpu-container-runtime is now a link to" >&2
    echo "$(readlink /usr/bin/xpu-container-runtime), and /usr/bin/xpu-container-runtime-hook to /bin/true. When they are gone:" >&2
    echo "  $1" >&2
}
