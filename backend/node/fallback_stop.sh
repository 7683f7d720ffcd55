# Runs on a node whose Python is gone or does not start: ends a run's processes, known by their mark.
#
#     sh -s FOLDER MARK GRACE --token T     read from standard input; prints one line, `T{"left": [[pid, name, state]...]}`
#
# And those that the last heartbeat names. The run's supervisor, where it still lives, is told too: it was loaded long
# ago, and writes the record of the end.
folder=$1 mark=$2 grace=$3 token=$5
umask 077

# A server whose database cannot be opened knows no mark.
[ -n "$mark" ] || mark=$(sed -n 's/^ *"mark": "\([^"]*\)".*/\1/p' "$folder/spec.json")
[ -n "$mark" ] || exit 1
mark=MEGABOARD_RUN=$mark

# What follows the name in /proc/PID/stat: the state first, the start twentieth.
stat_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null; }

# Those that live of `PID START`, a line each: the members that the last heartbeat names.
living() {
    while read -r pid start; do
        [ -n "$pid" ] && [ "$(stat_of "$pid" | cut -d' ' -f20)" = "$start" ] && [ "$(stat_of "$pid" | cut -c1)" != Z ] && echo "$pid"
    done
}
# Of this boot alone: after another the same number and start are another's.
known=$(timeout -s KILL 5 grep -qsF "$(cat /proc/sys/kernel/random/boot_id)" "$folder/pid" &&
    timeout -s KILL 5 tail -n 1 "$folder/heartbeat.jsonl" 2>/dev/null |
    sed -n 's/.*"members": \[\(.*\)\], "gpus".*/\1/p' | tr ']' '\n' | tr -d '[' | tr ',' ' ' | grep .)

# Each process of the run; zombies have no environment, and `grep -l` finds nothing in it.
alive() {
    echo "$known" | living
    for file in $(grep -lsF -e "$mark" /proc/[0-9]*/environ); do
        tr '\0' '\n' <"$file" 2>/dev/null | grep -qxF -e "$mark" && echo "${file#/proc/}" | cut -d/ -f1
    done
}

# Until none is left, or for so many seconds.
signal_for() {
    until [ -z "$(alive)" ] || [ "$2" -le 0 ]; do
        # A stopped process sees no SIGTERM.
        for pid in $(alive); do kill "-$1" "$pid" && kill -CONT "$pid"; done 2>/dev/null
        sleep 1
        set -- "$1" $(($2 - 1))
    done
}

tell_supervisor() {
    [ -d "$folder" ] && [ ! -e "$folder/exit" ] || return
    mkdir -p "$folder/control"
    echo "{\"protocol\": 1, \"grace_s\": $grace}" >"$folder/control/.kill.sh" && mv "$folder/control/.kill.sh" "$folder/control/kill"
}

# Not waited for: the folder may lie on a file server that is dead, as may the Python.
(exec </dev/null >/dev/null 2>&1 && tell_supervisor) &
sleep 1
signal_for TERM "${grace%.*}"
signal_for KILL 20
left=
for pid in $(alive | sort -u); do
    name=$(tr -cd 'A-Za-z0-9._-' <"/proc/$pid/comm" 2>/dev/null)
    state=$(stat_of "$pid" | cut -c1)
    left="$left${left:+, }[$pid, \"$name\", \"$state\"]"
done
echo "$token{\"left\": [$left]}"
