//! The join token of a container: `slurminit run` saves it, and executes itself again without it.

use super::*;
use config::token::{Token, TokenContents};

fn token(settings: &str) -> Token {
    let contents = TokenContents {
        controller: "head".to_owned(),
        address: [10, 0, 0, 1].into(),
        pinned: true,
        slurm: "24.11".to_owned(),
        issued: 100,
        expires: 200,
        settings: settings.to_owned(),
    };
    Token { contents, key: vec![7; 128] }
}

/// Runs the script in a container without a token. Returns its exit code, the files that it saved, and its messages.
fn start(script: &str) -> (i32, String, String) {
    let (_keep, directory) = scratch();
    for (file, settings) in [
        ("token", "cluster_name = 'lab'\n[slurm]\ncontroller = 'head'\n"),
        ("other", "cluster_name = 'other'\n[slurm]\ncontroller = 'head'\n"),
    ] {
        fs::write(directory.join(file), token(settings).encode()).unwrap();
    }
    let script = script.replace("RUN", r#""$0" run --role none"#);
    let script = format!(
        r#"mount -t tmpfs -o mode=755 run /run && mkdir -m 755 /run/secrets
        secret=/run/secrets/slurminit.join token=$(cat "$1/token") other=$(cat "$1/other")
        {script}
        code=$?
        cd /run/slurminit.join 2>/dev/null && stat --format='%n %a %u' * && cmp token "$1/token" && cat cluster.toml
        exit $code"#
    );
    let mut command = container_script("sh", &script, &directory);
    // A variable of the tests' own would be reported as unknown.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLURMINIT_")) {
        command.env_remove(name);
    }
    let end = run(command);
    (end.code, end.stdout, end.stderr)
}

#[test]
fn saves_token_of_option_variable_or_private_file() {
    for script in [
        r#"RUN --join "$token" -- true"#,
        r#"SLURMINIT_JOIN=$token RUN -- true"#,
        r#"install -m 400 "$1/token" $secret; RUN -- true"#,
        r#"install -m 400 "$1/token" $secret; RUN --join "$token" -- true"#,
    ] {
        let (code, saved, messages) = start(script);
        // The role none cannot join a cluster.
        assert!(code == 78 && messages.contains("--role"), "{script}: {code} {messages}");
        assert_eq!(
            saved, "cluster.toml 644 0\ntoken 400 0\ncluster_name = 'lab'\n[slurm]\ncontroller = 'head'\n",
            "{script}: {messages}"
        );
    }
}

#[test]
fn rejects_token_that_other_users_can_read_or_that_is_ambiguous() {
    for (script, expected) in [
        (r#"install -m 440 "$1/token" $secret; RUN -- true"#, "(uid 0, mode 0440)"),
        (r#"install -m 400 -o 1501 "$1/token" $secret; RUN -- true"#, "(uid 1501, mode 0400)"),
        (r#"install -m 400 "$1/token" $secret; RUN --join "$other" -- true"#, "contain different tokens"),
        (r#"RUN --join sj1-x -- true"#, "--join: "),
        (r#"sh -c 'RUN --join "$1" -- true; exit $?' "$0" "$token""#, "shows the token in its command line"),
    ] {
        let (code, saved, messages) = start(script);
        assert!(code == 78 && messages.contains(expected), "{script}: {code} {messages}");
        assert_eq!(saved, "", "{script}");
    }
}

#[test]
fn starts_without_token_if_its_file_is_empty_or_not_roots_alone() {
    for (script, expected) in [
        ("RUN -- true", ""),
        ("SLURMINIT_JOIN=' ' RUN -- true", ""),
        ("(umask 377; echo >$secret); RUN -- true", ""),
        (
            r#"install -m 400 "$1/token" $secret; chmod 777 /run/secrets; RUN -- true"#,
            "slurminit: ignoring the token /run/secrets",
        ),
    ] {
        let (code, saved, messages) = start(script);
        assert!(code == 0 && saved.is_empty() && messages.starts_with(expected), "{script}: {code} {saved} {messages}");
        assert_eq!(messages.is_empty(), expected.is_empty(), "{script}: {messages}");
    }
}
