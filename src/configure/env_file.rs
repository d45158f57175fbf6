//! The line `GPU_TYPE=...` of `.env`, which compose reads by itself. Every other line is the user's. PURE.

use super::choice::GpuType;

/// The file's name.
pub const NAME: &str = ".env";

/// The text of the file with our line in it, in the place of the one that is there.
pub fn with_gpu_type(old: &str, gpu_type: GpuType) -> String {
    let line = format!("GPU_TYPE={}", gpu_type.as_str());
    let mut is_written = false;
    let mut text = String::with_capacity(old.len() + line.len() + 1);
    for old_line in old.split_inclusive('\n') {
        if name(old_line) != Some("GPU_TYPE") {
            text.push_str(old_line);
        } else if !is_written {
            is_written = true;
            text.push_str(&line);
            text.push_str(if old_line.ends_with("\r\n") { "\r\n" } else { "\n" });
        }
    }
    if !is_written {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The value of `COMPOSE_FILE`, if it is set: then compose reads those files only.
pub fn compose_file(text: &str) -> Option<&str> {
    let line = text.lines().rfind(|line| name(line) == Some("COMPOSE_FILE"))?;
    line.split_once('=').map(|(_, value)| value.trim())
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
    fn only_our_line_changes() {
        for (old, new) in [
            ("", "GPU_TYPE=amd\n"),
            ("A=1", "A=1\nGPU_TYPE=amd\n"),
            ("A=1\n# GPU_TYPE=x\nGPU_TYPE=none\n\nB='2'\n", "A=1\n# GPU_TYPE=x\nGPU_TYPE=amd\n\nB='2'\n"),
            ("export GPU_TYPE = nvidia\r\nMY_GPU_TYPE=1\r\nGPU_TYPE=none\r\n", "GPU_TYPE=amd\r\nMY_GPU_TYPE=1\r\n"),
        ] {
            assert_eq!(with_gpu_type(old, GpuType::Amd), new, "{old:?}");
            assert_eq!(with_gpu_type(new, GpuType::Amd), new, "a second time");
        }
    }

    #[test]
    fn a_compose_file_variable_is_seen() {
        assert_eq!(compose_file("A=1\nCOMPOSE_FILE=compose.yaml:b.yaml\n"), Some("compose.yaml:b.yaml"));
        assert_eq!(compose_file("# COMPOSE_FILE=compose.yaml\n"), None);
    }
}
