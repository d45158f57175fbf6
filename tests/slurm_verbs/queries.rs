//! `slurminit token`, `usage` and `sbatch-args`.

use std::fs;

use super::fake::Fake;

#[test]
fn token_is_limited_by_configured_lifetime() {
    let fake = || {
        Fake::new()
            .config("AuthAltParameters = jwt_key=/k,max_token_lifespan=600")
            .reply("scontrol token username=alice lifespan=600", &["SLURM_JWT=abc\n"])
    };
    assert_eq!(fake().succeed(&["token", "alice", "--lifespan", "600"]), "abc\n");
    let longer = fake();
    assert!(!longer.run(&["token", "alice", "--lifespan", "601"]).status.success());
    assert_eq!(longer.calls("scontrol token"), [""; 0]);
    let unlimited = Fake::new().config("").reply("scontrol token *", &["SLURM_JWT=\n"]);
    assert!(!unlimited.run(&["token", "alice"]).status.success(), "an empty token");
    assert_eq!(unlimited.calls("scontrol token "), ["username=alice lifespan=3600"]);
}

#[test]
fn usage_sums_jobs_of_period() {
    let fake =
        Fake::new().reply("sacct *", &["70|alice|lab|3600|cpu=2,gres/gpu=1|\n71|alice|lab|3600|cpu=2,gres/gpu=1|\n"]);
    let output = fake.succeed(&["usage", "--since", "now-1days", "--until", "now-1hours", "--json"]);
    assert!(output.contains("\"gpu_seconds\": 7200"), "{output}");
    let [call] = fake.calls("sacct ").try_into().unwrap();
    assert!(call.contains("--starttime=now-1days --endtime=now-1hours"), "{call}");
    assert!(!Fake::new().fail("sacct *", "no database").run(&["usage"]).status.success());
}

#[test]
fn sbatch_args_are_refused_without_answer_of_controller() {
    let fake = Fake::new().fail("scontrol *", "Unable to contact slurm controller");
    let file = fake.path("method.json");
    fs::write(&file, "{\"cpus\": 1}").unwrap();
    let output = fake.run(&["sbatch-args", file.to_str().unwrap()]);
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--refused-by-slurminit\n");
    fs::write(&file, " ".repeat((1 << 20) + 1)).unwrap();
    let output = fake.run(&["sbatch-args", "--offline", file.to_str().unwrap()]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("longer than 1 MiB"), "{why}");
}
