"""The fixed shell programs that run on hosts (Linux and macOS); data reaches them as arguments, not as text.

Answers are lines that start with `e2llm`, so that banners and start-up files of the login shell do no harm.
"""

ANSWER = "e2llm "

TOOLS = r"""
LC_ALL=C; export LC_ALL
os=$(uname -s)
say() { printf 'e2llm %s\n' "$*"; }
boot_id() {
  if [ "$os" = Linux ]; then cat /proc/sys/kernel/random/boot_id; else sysctl -n kern.bootsessionuuid; fi
}
environment() {
  if [ "$os" = Linux ]; then cat "/proc/$1/environ" 2>/dev/null | tr '\0' '\n'
  else ps -Eww -o command= -p "$1" 2>/dev/null | tr ' ' '\n'; fi
}
marker_of() { environment "$1" | sed -n 's/^E2LLM_MARKER=\(e2llm-[0-9a-f]\{12\}\)$/\1/p' | head -n 1; }
installation_of() {
  environment "$1" | sed -n 's/^E2LLM_INSTALLATION=\([0-9a-f]\{12\}\)$/\1/p' | head -n 1
}
started() {
  if [ "$os" = Linux ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null); [ -n "$stat" ] || return 0
    set -- ${stat##*) }
    case $1 in Z|X) ;; *) printf '%s' "${20}";; esac
  else
    case $(ps -o stat= -p "$1" 2>/dev/null) in ''|Z*) ;; *) ps -o lstart= -p "$1" | tr -s ' ' '_';; esac
  fi
}
group_of() {
  if [ "$os" = Linux ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null); set -- ${stat##*) }; printf '%s' "$3"
  else ps -o pgid= -p "$1" 2>/dev/null | tr -d ' '; fi
}
state_of() {
  if [ "$os" = Linux ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null); set -- ${stat##*) }; printf '%s' "${1:-X}"
  else ps -o stat= -p "$1" 2>/dev/null | cut -c 1; fi
}
resident_kilobytes() {
  if [ "$os" = Linux ]; then sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status" 2>/dev/null
  else ps -o rss= -p "$1" 2>/dev/null | tr -d ' '; fi
}
marked_pids() {
  mark=E2LLM_MARKER=${1:-e2llm-}
  if [ "$os" = Linux ]; then
    grep -lasF "$mark" /proc/[0-9]*/environ 2>/dev/null | sed 's|/proc/\([0-9]*\)/.*|\1|'
  else ps -axEww -o pid=,command= | awk -v mark="$mark" 'index($0, mark) {print $1}'; fi
}
pids_of() {
  for candidate in $(marked_pids "$1"); do
    [ "$(marker_of "$candidate")" = "$1" ] && [ -n "$(started "$candidate")" ] && printf '%s ' "$candidate"
  done
}
"""

OBSERVE = (
    TOOLS
    + r"""
say boot "$(boot_id)"
for pid in $(marked_pids); do
  marker=$(marker_of "$pid"); began=$(started "$pid")
  if [ -n "$marker" ] && [ -n "$began" ]; then
    if [ "$os" = Linux ]; then command=$(tr '\0\n' '  ' <"/proc/$pid/cmdline" 2>/dev/null)
    else command=$(ps -ww -o command= -p "$pid"); fi
    command=$(printf '%s' "$command" | cut -c 1-400)
    resident=$(resident_kilobytes "$pid"); installation=$(installation_of "$pid")
    say process "$pid" "$marker" "$began" "$(state_of "$pid")" "${resident:-0}" "${installation:--}" "$command"
  fi
done
say end
"""
)

FACTS = (
    TOOLS
    + r"""
say os "$os"
say home "$HOME"
say boot "$(boot_id)"
if [ -d /dev/shm ] && [ -w /dev/shm ]; then say shm yes; else say shm no; fi
if [ "$os" = Linux ]; then
  say memory_kilobytes "$(sed -n 's/^MemAvailable:[^0-9]*\([0-9]*\).*/\1/p' /proc/meminfo)"
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk '$4 == "0A" {n = split($2, part, ":"); print "e2llm hex_port " part[n]}'
else
  pages=$(vm_stat |
    awk '/Pages (free|inactive|speculative|purgeable)/ {gsub("[.]", "", $NF); sum += $NF} END {print sum}')
  say memory_kilobytes $((pages * $(sysctl -n hw.pagesize) / 1024))
  netstat -anp tcp | awk '$NF == "LISTEN" {n = split($4, part, "."); print "e2llm port " part[n]}'
fi
say end
"""
)

# Arguments: program, model file or an empty word.
PREFLIGHT = (
    TOOLS
    + r"""
if [ ! -e "$1" ]; then say program missing
elif [ ! -x "$1" ]; then say program not_executable
else say program ok; fi
if [ -n "$2" ]; then
  if [ ! -e "$2" ]; then say model missing; elif [ ! -r "$2" ]; then say model unreadable
  else say model "$(wc -c <"$2" | tr -d ' ')"; fi
fi
say end
"""
)

# Arguments: folders that are to hold files.
WRITABLE = (
    TOOLS
    + r"""
umask 077
for folder in "$@"; do mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] || say no "$folder"; done
say end
"""
)

# Arguments: run folder, slot folder, installation. The note says whose the folders are when no row does any more.
PREPARE = (
    TOOLS
    + r"""
umask 077
if mkdir -p "$1" "$2" && [ -w "$1" ] && [ -w "$2" ] && printf '%s\n' "$3" >"$1/installation"
then say folders ok; else say folders failed; fi
"""
)

# Folders named after markers: minutes since anything in it changed (recently, a while ago, long ago), whether it holds
# anything but its note, and whose it is. Arguments: minutes that are recent, minutes that are long, folders to look in.
FOLDERS = (
    TOOLS
    + r"""
recent=$1; long=$2; shift 2
for root in "$HOME/.cache/e2llm" "$@"; do
  for folder in "$root"/e2llm-*; do
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || continue
    age=old
    [ -n "$(find "$folder" -mmin "-$long" 2>/dev/null | head -n 1)" ] && age=resting
    [ -n "$(find "$folder" -mmin "-$recent" 2>/dev/null | head -n 1)" ] && age=fresh
    holds=something
    [ -z "$(find "$folder" ! -type d ! -name installation 2>/dev/null | head -n 1)" ] && holds=nothing
    owner=$(head -c 12 "$HOME/.cache/e2llm/${folder##*/}/installation" 2>/dev/null)
    say folder "$age" "$holds" "${owner:--}" "$folder"
  done
done
say end
"""
)

# Arguments: marker, run folder, then the command. A repeat after a lost answer finds the first start.
# All three descriptors are redirected: an inherited one keeps the SSH channel open for ever.
START = (
    TOOLS
    + r"""
marker=$1; run=$2; shift 2
pid=$(pids_of "$marker"); pid=${pid%% *}
if [ -z "$pid" ]; then
  umask 077
  cd /
  if command -v setsid >/dev/null 2>&1; then setsid "$@" >>"$run/log" 2>&1 </dev/null &
  else perl -MPOSIX -e 'POSIX::setsid(); exec @ARGV or exit 127' "$@" >>"$run/log" 2>&1 </dev/null &
  fi
  pid=$!
  printf '%s\n' "$pid" >"$run/pid"
fi
tries=0
while [ "$tries" -lt 50 ] && kill -0 "$pid" 2>/dev/null && [ "$(marker_of "$pid")" != "$marker" ]; do
  sleep 0.1; tries=$((tries + 1))
done
say started "$pid" "$(started "$pid")"
say boot "$(boot_id)"
"""
)

# Arguments: marker, run folder, slot folder, seconds before each harder signal (by the clock: a busy host is slow).
# A server that waits for a frozen RPC worker ignores the first TERM and obeys the second.
STOP = (
    TOOLS
    + r"""
marker=$1; run=$2; slot=$3; patience=$4
signal_all() {
  for pid in $2; do
    target=$pid; [ "$(group_of "$pid")" = "$pid" ] && target=-$pid
    kill -s "$1" -- "$target" 2>/dev/null
  done
}
left=$(pids_of "$marker")
[ -n "$left" ] && say found "$left"
for signal in TERM TERM KILL; do
  [ -n "$left" ] || break
  signal_all "$signal" "$left"
  deadline=$(($(date +%s) + patience))
  while :; do
    left=$(pids_of "$marker")
    [ -n "$left" ] && [ "$(date +%s)" -lt "$deadline" ] || break
    sleep 0.2
  done
done
if [ -n "$left" ]; then say left "$left"; else
  for folder in "$run" "$slot"; do
    case ${folder##*/} in "$marker") rm -rf -- "$folder";; esac
  done
  say stopped
fi
"""
)

# Arguments: pid, address and port in the kernel's hex, address, port.
SOCKET_OWNER = (
    TOOLS
    + r"""
if [ "$os" = Linux ]; then
  inodes=$(awk -v want="$2" '$2 == want && $4 == "0A" {print $10}' "/proc/$1/net/tcp" 2>/dev/null || true)
  [ -n "$inodes" ] || inodes=$(awk -v want="$2" '$2 == want && $4 == "0A" {print $10}' /proc/net/tcp)
  if [ -z "$inodes" ]; then say socket none; exit 0; fi
  for descriptor in "/proc/$1/fd/"*; do
    link=$(readlink "$descriptor" 2>/dev/null)
    for inode in $inodes; do [ "$link" = "socket:[$inode]" ] && { say socket ours; exit 0; }; done
  done
  say socket other "$(ss -ltnpH "sport = :$4" 2>/dev/null | sed -n 's/.*users:((\(.*\)).*/\1/p' | head -n 1)"
else
  if lsof -nP -a -p "$1" -iTCP:"$4" -sTCP:LISTEN >/dev/null 2>&1; then say socket ours; exit 0; fi
  other=$(lsof -nP -iTCP:"$4" -sTCP:LISTEN 2>/dev/null | awk 'NR == 2 {print $1, $2}')
  if [ -n "$other" ]; then say socket other "$other"; else say socket none; fi
fi
"""
)

# Arguments: pid, RPC port or an empty word. Of the GPUs only NVIDIA's tell how much of them a process holds, and that
# not inside every container; what came in over RPC is mostly weights.
ON_GPU = (
    TOOLS
    + r"""
if command -v nvidia-smi >/dev/null 2>&1; then
  mebibytes=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>/dev/null |
    awk -F ', *' -v pid="$1" '$1 == pid && $2 ~ /^[0-9]+$/ {sum += $2} END {if (sum) print sum}')
  [ -n "$mebibytes" ] && say video_mebibytes "$mebibytes"
fi
if [ -n "$2" ] && command -v ss >/dev/null 2>&1; then
  ss -tinH state established "( sport = :$2 )" 2>/dev/null | tr ' ' '\n' |
    awk -F : '$1 == "bytes_received" {sum += $2; seen = 1} END {if (seen) print "e2llm received", sum}'
fi
say end
"""
)

# Arguments: pid, then paths of programs: one word of its command line a line, and which of the programs it runs.
# A program that was replaced on the disk is another file than the one that runs.
IDENTITY = (
    TOOLS
    + r"""
pid=$1; shift
say home "$HOME"
if [ -d /dev/shm ] && [ -w /dev/shm ]; then say shm yes; else say shm no; fi
if [ "$os" = Linux ]; then
  tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | sed 's/^/e2llm word /'
  for path in "$@"; do [ "/proc/$pid/exe" -ef "$path" ] && say program "$path"; done
else
  ps -ww -o command= -p "$pid" 2>/dev/null | tr ' ' '\n' | sed 's/^/e2llm word /'
  inodes=$(lsof -nP -a -p "$pid" -d txt -F i 2>/dev/null)
  for path in "$@"; do
    printf '%s\n' "$inodes" | grep -qx "i$(stat -L -f %i "$path" 2>/dev/null)" && say program "$path"
  done
fi
say end
"""
)

# Arguments: file, lines.
LOG_TAIL = r"""
if [ -r "$1" ]; then tail -c 262144 "$1" | tail -n "$2"; fi
"""

# Arguments: file. What a llama-server prints about its placement while it loads.
PLACEMENT_LINES = r"""
grep -aE 'buffer size|offloaded|graph splits|pipeline parallelism' "$1" | head -n 600
"""

# Arguments: file, bytes above which it starts over. It is open for appending, so nothing later is lost.
TRIM_LOG = r"""
if [ -f "$1" ] && [ "$(wc -c <"$1")" -gt "$2" ]; then : >"$1"; fi
"""
