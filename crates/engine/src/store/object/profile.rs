//! The usual AWS configuration files: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Of a profile, the static keys, the region and the endpoint are read. Roles, SSO and external processes are not.

use std::collections::HashMap;
use std::path::PathBuf;

/// What a profile says.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub key_id: Option<String>,
    pub secret: Option<String>,
    pub token: Option<String>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
}

/// The lines of one section as names and values. Indented lines belong to a nested group and are left out.
fn section(text: &str, wanted: &[String]) -> HashMap<String, String> {
    let mut inside = false;
    let mut found = HashMap::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(name) = trimmed
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            inside = wanted.iter().any(|one| one == name.trim());
        } else if inside && !line.starts_with([' ', '\t', '#', ';']) {
            if let Some((name, value)) = trimmed.split_once('=') {
                found.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
            }
        }
    }
    found
}

impl Profile {
    /// From the texts of both files.
    pub fn parse(name: &str, credentials: &str, config: &str) -> Self {
        let mut secret = section(credentials, &[name.to_owned()]);
        let mut names = vec![format!("profile {name}")];
        if name == "default" {
            names.push(name.to_owned());
        }
        let mut settings = section(config, &names);
        let mut either = |name: &str| secret.remove(name).or_else(|| settings.remove(name));
        Self {
            key_id: either("aws_access_key_id"),
            secret: either("aws_secret_access_key"),
            token: either("aws_session_token"),
            region: either("region"),
            endpoint: either("endpoint_url"),
        }
    }

    /// From the files where the environment and custom say they are. Files that are not there are empty.
    pub fn load(name: Option<&str>) -> Self {
        let name = name
            .map(str::to_owned)
            .or_else(|| std::env::var("AWS_PROFILE").ok());
        let read = |variable: &str, file: &str| {
            let path = std::env::var_os(variable).map(PathBuf::from).or_else(|| {
                let home = std::env::var_os("HOME")?;
                Some(PathBuf::from(home).join(".aws").join(file))
            });
            path.and_then(|path| std::fs::read_to_string(path).ok())
                .unwrap_or_default()
        };
        Self::parse(
            name.as_deref().unwrap_or("default"),
            &read("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            &read("AWS_CONFIG_FILE", "config"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# keys\n[default]\naws_access_key_id = AK1\naws_secret_access_key=S1=\n\n[lab]\naws_access_key_id=AK2\n";
    const CONFIG: &str =
        "[default]\nregion = eu-west-1\n[profile lab]\nregion=eu-north-1\ns3 =\n  region = nested\nendpoint_url = https://s3.lab\n";

    #[test]
    fn profiles_are_read_from_both_files() {
        let default = Profile::parse("default", CREDENTIALS, CONFIG);
        assert_eq!(default.key_id.as_deref(), Some("AK1"));
        assert_eq!(default.secret.as_deref(), Some("S1="));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        assert_eq!(default.endpoint, None);
        let lab = Profile::parse("lab", CREDENTIALS, CONFIG);
        assert_eq!(lab.key_id.as_deref(), Some("AK2"));
        assert_eq!(lab.secret, None);
        assert_eq!(lab.region.as_deref(), Some("eu-north-1"));
        assert_eq!(lab.endpoint.as_deref(), Some("https://s3.lab"));
        assert!(Profile::parse("none", CREDENTIALS, CONFIG) == Profile::default());
    }
}
