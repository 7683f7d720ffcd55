# Stop of a run on a node whose Python does not start. It ends the processes with the run's mark, and the members that
# the last heartbeat names. A living supervisor also gets the stop: it needs no Python from the disk, and writes `exit`.
#
#     sh -s FOLDER MARK GRACE --token T     read from standard input; prints one line, `T{"left": [[pid, name, state]...]}`
folder=$1 mark=$2 grace=$3 token=$5
umask 077

# A server whose database cannot be opened does not know the mark.
[ -n "$mark" ] || mark=$(sed -n 's/^ *"mark": "\([^"]*\)".*/\1/p' "$folder/spec.json")
[ -n "$mark" ] || exit 1
mark=MEGABOARD_RUN=$mark

# The values after the name in /proc/PID/stat: the first is the state, the twentieth is the start.
stat_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null; }

# Reads lines `PID START` and prints the ids of the processes that live.
living() {
    while read -r pid start; do
        [ -n "$pid" ] || continue
        # One read of both values: the process may end between two reads.
        stat=$(stat_of "$pid")
        [ -n "$stat" ] && [ "$(echo "$stat" | cut -d' ' -f20)" = "$start" ] && [ "${stat%% *}" != Z ] && echo "$pid"
    done
}
# Members of the last heartbeat, if it is from this boot. After a restart other processes may have the same ids.
known=$(timeout -s KILL 5 grep -qsF "$(cat /proc/sys/kernel/random/boot_id)" "$folder/pid" &&
    timeout -s KILL 5 tail -n 1 "$folder/heartbeat.jsonl" 2>/dev/null |
    sed -n 's/.*"members": \[\(.*\)\], "gpus".*/\1/p' | tr ']' '\n' | tr -d '[' | tr ',' ' ' | grep .)

# Prints the ids of the run's processes. Zombies have no environment, so `grep -l` does not find them.
alive() {
    echo "$known" | living
    for file in $(grep -lsF -e "$mark" /proc/[0-9]*/environ); do
        tr '\0' '\n' <"$file" 2>/dev/null | grep -qxF -e "$mark" && echo "${file#/proc/}" | cut -d/ -f1
    done
}

# Sends a signal every second, until no process is left or the seconds are over.
signal_for() {
    until [ -z "$(alive)" ] || [ "$2" -le 0 ]; do
        # A stopped process does not react to SIGTERM.
        for pid in $(alive); do kill "-$1" "$pid" && kill -CONT "$pid"; done 2>/dev/null
        sleep 1
        set -- "$1" $(($2 - 1))
    done
}

stop_supervisor() {
    [ -d "$folder" ] && [ ! -e "$folder/exit" ] || return
    mkdir -p "$folder/control"
    echo "{\"protocol\": 1, \"grace_s\": $grace}" >"$folder/control/.kill.sh" && mv "$folder/control/.kill.sh" "$folder/control/kill"
}

# In the background, because the folder may be on a dead file server.
(exec </dev/null >/dev/null 2>&1 && stop_supervisor) &
sleep 1
signal_for TERM "${grace%.*}"
signal_for KILL 20
left=
for pid in $(alive | sort -u); do
    name=$(tr -cd 'A-Za-z0-9._-' <"/proc/$pid/comm" 2>/dev/null)
    state=$(stat_of "$pid" | cut -c1)
    # It ended after `alive` listed it.
    [ -n "$state" ] && [ "$state" != Z ] || continue
    left="$left${left:+, }[$pid, \"$name\", \"$state\"]"
done
# A container whose client was killed. Its processes have ended, so it only has to be removed.
for runtime in docker podman; do
    grep -qsF "\"runtime\": \"$runtime\"" "$folder/spec.json" || continue
    name=megaboard-${mark#MEGABOARD_RUN=}
    timeout -s KILL 10 "$runtime" rm --force "$name" >/dev/null 2>&1
    [ -z "$(timeout -s KILL 10 "$runtime" ps --all --quiet --filter "name=^/?$name\$" || echo unknown)" ] ||
        left="$left${left:+, }[0, \"$name\", \"?\"]"
done
echo "$token{\"left\": [$left]}"
