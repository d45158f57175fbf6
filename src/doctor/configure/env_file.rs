//! slurminit's lines in `.env`, which compose reads automatically. All other lines belong to the user.

use super::choice::GpuType;
use super::gpu_file;

/// The name of the file.
pub const NAME: &str = ".env";

/// The text of `.env` with slurminit's lines added or replaced: the GPU type of the image, and the name of the GPU
/// file. If compose is not to read the GPU file, the line with its name is removed.
pub fn with_gpus(old: &str, gpu_type: GpuType, reads_gpu_file: bool) -> String {
    let file = reads_gpu_file.then_some(gpu_file::NAME);
    let text = with_line(old, "GPU_TYPE", Some(gpu_type.as_str()));
    with_line(&text, gpu_file::VARIABLE, file)
}

/// Sets `key` in the text of `.env`, on one line; without a value, removes all its lines.
fn with_line(old: &str, key: &str, value: Option<&str>) -> String {
    let mut line = value.map(|value| format!("{key}={value}"));
    let mut text = String::with_capacity(old.len());
    for old_line in old.split_inclusive('\n') {
        if name(old_line) != Some(key) {
            text.push_str(old_line);
        } else if let Some(line) = line.take() {
            text.push_str(&line);
            text.push_str(if old_line.ends_with("\r\n") { "\r\n" } else { "\n" });
        }
    }
    if let Some(line) = line {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The value of `COMPOSE_FILE`, if `.env` sets it: then compose reads only the listed files.
pub fn compose_file(text: &str) -> Option<&str> {
    let line = text.lines().rfind(|line| name(line) == Some("COMPOSE_FILE"))?;
    line.split_once('=').map(|(_, value)| value.trim().trim_matches(['"', '\'']))
}

fn name(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('=')?;
    let name = name.trim();
    Some(name.strip_prefix("export ").unwrap_or(name).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpu_variables_are_changed() {
        const FILE: &str = "GPU_COMPOSE_FILE=compose.gpus.yaml\n";
        for (old, new) in [
            ("", "GPU_TYPE=amd\nGPU_COMPOSE_FILE=compose.gpus.yaml\n"),
            ("A=1", "A=1\nGPU_TYPE=amd\nGPU_COMPOSE_FILE=compose.gpus.yaml\n"),
            (
                "A=1\n# GPU_TYPE=x\nGPU_COMPOSE_FILE=x\nGPU_TYPE=none\n\nB='2'\n",
                "A=1\n# GPU_TYPE=x\nGPU_COMPOSE_FILE=compose.gpus.yaml\nGPU_TYPE=amd\n\nB='2'\n",
            ),
            (
                "export GPU_TYPE = nvidia\r\nMY_GPU_TYPE=1\r\nGPU_TYPE=none\r\n",
                "GPU_TYPE=amd\r\nMY_GPU_TYPE=1\r\nGPU_COMPOSE_FILE=compose.gpus.yaml\n",
            ),
        ] {
            assert_eq!(with_gpus(old, GpuType::Amd, true), new, "{old:?}");
            assert_eq!(with_gpus(new, GpuType::Amd, true), new, "not idempotent");
            assert_eq!(with_gpus(new, GpuType::Amd, false), new.replace(FILE, ""), "compose ignores the GPU file");
        }
    }

    #[test]
    fn reads_compose_file_variable() {
        assert_eq!(compose_file("A=1\nCOMPOSE_FILE=compose.yaml:b.yaml\n"), Some("compose.yaml:b.yaml"));
        assert_eq!(compose_file("COMPOSE_FILE=\"compose.yaml\"\n"), Some("compose.yaml"));
        assert_eq!(compose_file("# COMPOSE_FILE=compose.yaml\n"), None);
    }
}
