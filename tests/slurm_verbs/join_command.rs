//! `slurminit join-command`: the command for another machine, and its token.

use std::fs;

use super::fake::Fake;
use config::token::Token;

/// A controller with a munge key, whose sinfo lists these nodes.
pub(super) fn controller(nodes: &str) -> Fake {
    let fake = Fake::new().reply("sinfo *", &[nodes]).reply("slurmd -V", &["slurm 24.11.5\n"]);
    let key = fake.path("munge.key");
    fs::write(&key, [7; 32]).unwrap();
    let text = fs::read_to_string(fake.path("slurminit.toml")).unwrap();
    let text = text
        .replace("[paths]\n", &format!("role = \"controller\"\ngpu_type = \"nvidia\"\n[paths]\nmunge_key = {key:?}\n"));
    fs::write(fake.path("slurminit.toml"), text).unwrap();
    fake
}

/// The printed command without its token, the token, and the advice.
fn join_command(fake: &Fake, options: &str) -> (String, Token, String) {
    let mut command = fake.command(&["join-command"]);
    let output = command.args(options.split(' ')).output().unwrap();
    let advice = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{advice}");
    let line = String::from_utf8(output.stdout).unwrap();
    let (line, token) = line.trim().split_once(" --join ").unwrap();
    (line.to_owned(), Token::decode(token).unwrap(), advice)
}

const START: &str = "docker run -d --restart unless-stopped --stop-timeout 30";

#[test]
fn token_names_controller_until_it_expires() {
    let fake = controller("compute-1 gpu:nvidia:2\n");
    let before = watch::agent::unix();
    let (line, token, advice) =
        join_command(&fake, "--network host --address 10.0.0.1 --expires 12h --volume lab:/data");
    assert_eq!(
        line,
        format!("{START} --name compute --network host --shm-size 1g -v lab:/data --gpus all slurminit:latest")
    );
    let contents = token.contents;
    assert_eq!((token.key, contents.address.to_string()), (vec![7; 32], "10.0.0.1".to_owned()));
    assert!((before..=watch::agent::unix()).contains(&contents.issued));
    assert_eq!(contents.expires - contents.issued, 12 * 3600);
    assert!(contents.pinned && contents.slurm == "24.11", "{}", contents.slurm);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(contents.controller, host);
    assert!(config::TokenSettings::parse(&contents.settings).is_ok());
    assert!(
        advice.contains(
            "Run the command on the new node's host within 12 h; slurminit:latest must be the same image on that host as on this one."
        ),
        "{advice}"
    );
    assert!(advice.contains("let the node connect to 10.0.0.1:6817, and "), "{advice}");
    assert!(!advice.contains("Mount the shared directories") && !advice.contains("passes no GPUs"), "{advice}");
    fs::create_dir(fake.path("etc")).unwrap();
    fs::write(fake.path("etc/slurm.conf"), "ClusterName=lab\n").unwrap();
    let (_, _, advice) = join_command(&fake, "--network host --address 10.0.0.1");
    assert!(
        advice.contains("Mount the shared directories of this cluster") && advice.contains("your own slurm.conf"),
        "{advice}"
    );
}

#[test]
fn node_in_engines_network_has_free_name_and_gpus_like_the_others() {
    let options = "--network lab --address 10.0.0.1 --image lab/slurm:1";
    for (nodes, gpus) in [("compute-1 gpu:nvidia:2\n", "--gpus all "), ("compute-1 (null)\n", "")] {
        let (line, token, advice) = join_command(&controller(nodes), options);
        assert!(
            line.starts_with(&format!("{START} --name compute-2 --hostname compute-2 --network lab --shm-size 1g ")),
            "{line}"
        );
        assert!(line.ends_with(&format!("{gpus}lab/slurm:1")) && line.contains("--gpus") != gpus.is_empty(), "{line}");
        assert!(token.contents.pinned);
        assert_eq!(advice.contains("passes no GPUs"), gpus.is_empty(), "{advice}");
        assert!(!advice.contains("Open 10.0.0.1") && !advice.contains("Mount the shared"), "{advice}");
    }
    // The first node has nothing to compare with, and the GPUs of the demo image are simulated.
    let first = controller("");
    assert!(
        join_command(&first, options).0.contains("--name compute-1 ")
            && join_command(&first, options).0.contains("--gpus all")
    );
    let demo = first
        .command(&["join-command", "--network", "lab", "--address", "10.0.0.1"])
        .env("SLURMINIT_DEMO", "1")
        .output()
        .unwrap();
    assert!(demo.status.success() && !String::from_utf8_lossy(&demo.stdout).contains("--gpus"), "{demo:?}");
}
