//! Names of topics as folders of queues.

/// Longest name that a file system takes.
const FOLDER_NAME_SIZE_MAX: usize = 255;

/// A topic name that can be a folder's; one of a record may be shorter only.
pub(crate) fn topic_name(topic: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(topic).ok()?;
    let is_name = !name.is_empty()
        && topic.len() <= FOLDER_NAME_SIZE_MAX
        && name != "."
        && name != ".."
        && !topic.iter().any(|&byte| byte == b'/' || byte == 0);
    is_name.then_some(name)
}
