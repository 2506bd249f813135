    # The engines must not go on naming a program that is about to go. Docker reads its configuration again when told;
    # containerd only when it is restarted, which is the operator's to do: until then it needs the program's path.
    for engine in docker containerd; do
        said=$(/usr/bin/xpu runtime unconfigure $engine 2>&1) || { echo "xpu-container-runtime: $engine: $said" >&2; continue; }
        case $said in
            *"nothing to change"*) continue ;;
        esac
        echo "xpu-container-runtime: taken out of $engine's configuration"
        if [ $engine = docker ]; then
            pid=$(cat /run/docker.pid 2>/dev/null) && kill -HUP "$pid" 2>/dev/null || true
        else
            for process in /proc/[0-9]*; do
                [ "$(cat "$process/comm" 2>/dev/null)" = containerd ] || continue
                mkdir -p /run/xpu
                # Its number, and when it began, in the 22nd field (the second is a name in brackets).
                echo "${process#/proc/} $(sed 's/.*) //' "$process/stat" | cut -d ' ' -f 20)" >> /run/xpu/read-before-removal
                echo "  containerd goes on with what it has read: systemctl restart containerd"
            done
        fi
    done
    held=$(/usr/bin/xpu ps 2>/dev/null | tail -n +2) || true
    if [ -n "$held" ]; then
        echo "xpu-container-runtime: these containers hold slices, and keep them until they end; who starts a" >&2
        echo "container meanwhile by other means is not stopped from taking the same memory:" >&2
        echo "$held" >&2
    fi
    rm -f /usr/lib/xpu-container-runtime/python/start.bundle
    find /usr/lib/xpu-container-runtime -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
