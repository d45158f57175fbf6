//! Silent connections that are reopened when they are closed.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

/// Holds COUNT connections to a local port or Unix socket, and reopens each that is closed.
const SILENT: &str = r#"
silent() { # COUNT PORT-or-PATH
    perl -e '
        use IO::Socket::INET; use IO::Socket::UNIX; $SIG{PIPE} = "IGNORE";
        my ($count, $where) = @ARGV; my @held;
        while (1) {
            @held = grep { my $bits = ""; vec($bits, fileno($_), 1) = 1;
                !(select($bits, undef, undef, 0) && !sysread($_, my $byte, 1)) } @held;
            while (@held < $count) {
                my $new = $where =~ /^\d+$/ ? IO::Socket::INET->new(PeerAddr => "127.0.0.1:$where", Timeout => 1)
                    : IO::Socket::UNIX->new(Peer => $where);
                last unless $new;
                push @held, $new;
            }
            select(undef, undef, undef, 0.1);
        }' "$1" "$2" &
}
"#;

/// The largest counts exceed the thread limit of Slurm's daemons, and that of munged by far.
pub(super) fn attacks() -> Vec<Attack> {
    let attack = |name, lines: &str| Attack::new(name, &format!("{SILENT}{lines}; wait"), Sign::event("unit-slow"));
    let quiet = |name, lines: &str| Attack::new(name, &format!("{SILENT}{lines}; wait"), Sign::event("ready"));
    vec![
        quiet("8 silent connections to munged", "silent 8 /run/munge/munge.socket.2"),
        attack("400 silent connections to munged", "silent 400 /run/munge/munge.socket.2"),
        quiet("60 silent connections to slurmctld", "silent 60 6817"),
        quiet("800 silent connections to slurmctld", "silent 800 6817"),
        attack("2000 silent connections to slurmctld", "silent 2000 6817"),
        quiet("60 silent connections to slurmd", "silent 60 6818"),
        quiet("400 silent connections to slurmd", "silent 400 6818"),
        attack(
            "silent connections to munged, slurmctld and slurmd at once",
            "silent 400 /run/munge/munge.socket.2; silent 800 6817; silent 400 6818",
        ),
    ]
}
