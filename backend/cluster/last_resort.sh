# Runs on a node whose Python is gone or does not start: ends a run's processes, which its mark alone tells from others.
#
#     sh -s FOLDER MARK GRACE --token T     read from standard input; prints one line, `T{"left": [[pid, name, state]...]}`
#
# The run's supervisor, where it still lives, is told too: it was loaded long ago, knows more processes than the marked
# ones, and writes the record of the end. A process whose environment cannot be read is beyond a shell's reach.
folder=$1 mark=MEGABOARD_RUN=$2 grace=$3 token=$5
umask 077

# Each process of the mark; zombies have no environment, and `grep -l` finds nothing in it.
marked() {
    for file in $(grep -lsF -e "$mark" /proc/[0-9]*/environ); do
        tr '\0' '\n' <"$file" 2>/dev/null | grep -qxF -e "$mark" && echo "${file#/proc/}" | cut -d/ -f1
    done
}

# Until none is left, or for so many seconds.
signal_for() {
    until [ -z "$(marked)" ] || [ "$2" -le 0 ]; do
        # A stopped process sees no SIGTERM.
        for pid in $(marked); do kill "-$1" "$pid" && kill -CONT "$pid"; done 2>/dev/null
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
for pid in $(marked); do
    name=$(tr -cd 'A-Za-z0-9._-' <"/proc/$pid/comm" 2>/dev/null)
    state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1)
    left="$left${left:+, }[$pid, \"$name\", \"$state\"]"
done
echo "$token{\"left\": [$left]}"
