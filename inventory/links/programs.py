"""The measuring program in the two languages that hosts have; both speak the same protocol over one TCP connection.

The listener answers `P` with `P`, swallows `U n`, sends n bytes for `D n`, ends at `Q`; a token comes first.
The client prints `rtt SECONDS` and, unless its role is "ping", `up BYTES SECONDS` and `down BYTES SECONDS`.
"""

PYTHON = r"""
import socket, sys, time
role, host, port, token, life = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode(), float(sys.argv[5])
BLOCK = bytes(262144)
def swallow(stream, count):
    while count:
        got = stream.read(min(count, 262144))
        if not got:
            sys.exit("the other side hung up")
        count -= len(got)
def send(sock, count):
    while count:
        part = BLOCK[:count]
        sock.sendall(part)
        count -= len(part)
def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(life)
    stream = sock.makefile("rb", 262144)
    if stream.readline(200).strip() != token:
        return True
    for line in stream:
        word, _, count = line.decode().strip().partition(" ")
        if word == "Q":
            return False
        if word == "D":
            send(sock, int(count))
            continue
        if word == "U":
            swallow(stream, int(count))
        sock.sendall(b"P\n")
    return False
def listen():
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
    except OSError:
        server.bind(("0.0.0.0", port))
    server.listen(4)
    server.settimeout(life)
    while serve(server.accept()[0]):
        pass
def connect():
    for _ in range(40):
        try:
            return socket.create_connection((host, port), timeout=2)
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit("connection refused")
def timed(sock, stream, word, count):
    began = time.perf_counter()
    sock.sendall(("%s %d\n" % (word, count)).encode())
    if word == "U":
        send(sock, count)
    if word == "D":
        swallow(stream, count)
    else:
        stream.readline(10)
    return time.perf_counter() - began
def measure():
    sock = connect()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(life)
    stream = sock.makefile("rb", 262144)
    sock.sendall(token + b"\n")
    timed(sock, stream, "P", 0)
    for _ in range(15):
        print("rtt %.9f" % timed(sock, stream, "P", 0))
    for word, name in (("U", "up"), ("D", "down")) if role == "measure" else ():
        count, seconds = 65536, 0.0
        while seconds < 0.12 and count < 134217728:
            count *= 4
            seconds = timed(sock, stream, word, count)
        for _ in range(3):
            print("%s %d %.9f" % (name, count, timed(sock, stream, word, count)))
    sock.sendall(b"Q\n")
listen() if role == "listen" else measure()
"""

PERL = r"""
use strict; use Socket; use IO::Handle; use Time::HiRes qw(time sleep);
my ($role, $host, $port, $token, $life) = @ARGV;
$SIG{ALRM} = sub { exit 1 }; alarm($life);
my $block = "\0" x 262144;
sub swallow {
  my ($s, $n) = @_;
  while ($n > 0) { my $g = read($s, my $b, $n < 262144 ? $n : 262144); exit 1 unless $g; $n -= $g }
}
sub fill {
  my ($s, $n) = @_;
  while ($n > 0) { my $p = $n < 262144 ? substr($block, 0, $n) : $block; print $s $p; $n -= length $p }
  $s->flush;
}
sub tune { my $s = shift; setsockopt($s, 6, 1, 1); binmode $s; $s->autoflush(1) }
if ($role eq "listen") {
  socket(my $l, PF_INET, SOCK_STREAM, 6) or die $!;
  setsockopt($l, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($l, sockaddr_in($port, inet_aton($host))) or bind($l, sockaddr_in($port, INADDR_ANY)) or die $!;
  listen($l, 4) or die $!;
  while (accept(my $s, $l)) {
    tune($s);
    my $t = <$s>; $t = "" unless defined $t; chomp $t; next if $t ne $token;
    while (my $line = <$s>) {
      my ($w, $n) = split " ", $line;
      exit 0 if $w eq "Q";
      if ($w eq "D") { fill($s, $n); next }
      swallow($s, $n) if $w eq "U";
      print $s "P\n";
    }
    exit 0;
  }
}
my $s;
for (1 .. 41) {
  die "connection refused\n" if $_ == 41;
  socket($s, PF_INET, SOCK_STREAM, 6) or die $!;
  last if connect($s, sockaddr_in($port, inet_aton($host)));
  die "$!\n" unless $!{ECONNREFUSED};
  close $s; sleep 0.05;
}
tune($s); print $s "$token\n";
sub timed {
  my ($w, $n) = @_;
  my $b = time;
  print $s "$w $n\n";
  fill($s, $n) if $w eq "U";
  if ($w eq "D") { swallow($s, $n) } else { my $a = <$s> }
  return time - $b;
}
timed("P", 0);
printf "rtt %.9f\n", timed("P", 0) for 1 .. 15;
for my $way ($role eq "measure" ? (["U", "up"], ["D", "down"]) : ()) {
  my ($n, $t) = (65536, 0);
  while ($t < 0.12 && $n < 134217728) { $n *= 4; $t = timed($way->[0], $n) }
  printf "%s %d %.9f\n", $way->[1], $n, timed($way->[0], $n) for 1 .. 3;
}
print $s "Q\n";
"""

LANGUAGES = {"python3": ["python3", "-I", "-c", PYTHON], "perl": ["perl", "-e", PERL]}
