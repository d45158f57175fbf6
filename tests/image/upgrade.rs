//! Upgrades of Slurm with queued jobs, through the images in SLURMINIT_TEST_UPGRADE, oldest first (tests/versions/run).

use crate::docker::{Container, Image, Volume};

/// Accounting images and their Slurm releases, in order.
fn images() -> Vec<(String, String)> {
    let all = std::env::var("SLURMINIT_TEST_UPGRADE").expect("SLURMINIT_TEST_UPGRADE lists the images");
    let release = |image: &str| {
        let printed = Image::new(image).with(["--entrypoint", "slurmd"]).run(&["-V"]).ok();
        let numbers = printed.split(' ').nth(1).expect("output like `slurm-wlm 24.11.5`").split('.').take(2);
        numbers.collect::<Vec<_>>().join(".")
    };
    let images: Vec<_> = all.split(' ').map(|image| (image.to_owned(), release(image))).collect();
    assert!(images.len() > 1 && images.is_sorted_by_key(|(_, release)| release.clone()), "{images:?}");
    images
}

/// Jobs, reservations and accounting records, which an upgrade must keep.
fn persistent_state(container: &Container) -> String {
    container.sh("squeue --noheader --sort=i --format='%i %j %T %r %P'
         squeue --noheader --jobs=2 --format='Comment=%k'
         scontrol --oneliner show reservation | grep -o 'ReservationName=[^ ]*\\|Users=[^ ]*\\|EndTime=[^ ]*'
         sacct --noheader --parsable2 --allocations --starttime=now-1day --format=JobID,JobName,State,ExitCode
         sacctmgr --noheader --parsable2 show account format=Account")
}

#[test]
#[ignore = "needs images of several releases: run tests/versions/run"]
fn jobs_reservations_and_accounting_survive_each_release() {
    let images = images();
    let state = Volume::new("upgrade");
    let home = Volume::new("upgrade-home");
    let image = |name: &str| Image::new(name).volume(&state, "/var/lib/slurm").volume(&home, "/data").json_log();
    let container = image(&images[0].0).serve();
    container.sh("sbatch --wait --job-name=failed --output=/dev/null --wrap 'exit 3' || true
         sbatch --hold --time=5 --job-name=held --comment='keep this' --output=/data/held --wrap 'echo ran'
         sbatch --dependency=afterok:2 --time=5 --job-name=after --output=/data/after --wrap 'echo ran after'
         sbatch --hold --array=1-3%1 --job-name=array --output=/dev/null --wrap true
         sacctmgr --immediate add account lab >/dev/null
         scontrol create reservation reservationname=later starttime=now+1day duration=60 users=root nodes=ALL");
    container.until("sacct --noheader --allocations --jobs=1 --format=State | grep -q FAILED");
    let before = persistent_state(&container);
    for word in [
        "held PENDING JobHeldUser",
        "after PENDING Dependency",
        "Comment=keep this",
        "ReservationName=later",
        "1|failed|FAILED|3:0",
        "lab",
    ] {
        assert!(before.contains(word), "{word}: {before}");
    }
    assert_eq!(container.stop(), 0, "{}", container.log());
    drop(container);
    for pair in images.windows(2) {
        let ((_, from), (name, to)) = (&pair[0], &pair[1]);
        let container = image(name).serve();
        assert_eq!(persistent_state(&container), before, "{from} to {to}");
        let upgrades = container.records("state-upgrade");
        assert_eq!(upgrades.len(), 1, "{}", container.log());
        assert_eq!([&upgrades[0]["fields"]["saved"], &upgrades[0]["fields"]["own"]], [from.as_str(), to.as_str()]);
        assert_eq!(container.stop(), 0, "{}", container.log());
        drop(container);
        // The previous image rejects the upgraded state without changing it.
        let downgrade = Image::new(&pair[0].0).volume(&state, "/var/lib/slurm").run(&["true"]);
        assert_eq!(downgrade.code, 78, "{downgrade:?}");
    }
    let container = image(&images[images.len() - 1].0).serve();
    assert_eq!(persistent_state(&container), before);
    container.sh("scontrol release 2");
    container.until("[ \"$(cat /data/after)\" = \"ran after\" ]");
    let next = container.sh("sbatch --parsable --output=/dev/null --wrap true").parse::<u32>().unwrap();
    assert_eq!(next, 5, "an ID must not be used twice");
}
