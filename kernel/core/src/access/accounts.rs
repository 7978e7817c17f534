//! Accounts and what they may do (`PlainAccessResource`).

use std::fmt;

use hashbrown::HashMap;

use super::signature::SigningKey;
use crate::protocol::{MAY_DENY, RETRY_PREFIX};

/// Number of an account that there is none of.
pub const NO_ACCOUNT: u32 = u32::MAX;

/// One account as the broker reports it.
#[allow(missing_docs)] // the names are those of the Python interface
pub struct AccountRules {
    pub access_key: String,
    pub secret_key: String,
    pub may_everything: bool,
    pub default_topic: u8,
    pub default_group: u8,
    pub resources: Vec<(String, u8)>,
}

impl fmt::Debug for AccountRules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AccountRules({:?})", self.access_key)
    }
}

/// Topics or groups with their permissions, and the one of all others.
#[derive(Debug)]
struct Permissions {
    by_name: HashMap<Box<[u8]>, u8>,
    default: u8,
}

impl Permissions {
    fn new(default: u8) -> Self {
        Self { by_name: HashMap::new(), default }
    }

    #[inline]
    fn allows(&self, name: &[u8], need: u8) -> bool {
        // Most accounts have defaults only.
        let own = if self.by_name.is_empty() { None } else { self.by_name.get(name) };
        let owned = own.copied().unwrap_or(self.default);
        owned & MAY_DENY == 0 && owned & need != 0
    }
}

/// One account.
#[derive(Debug)]
pub struct Account {
    key: Box<[u8]>,
    /// What its requests are signed with.
    pub signing: SigningKey,
    /// An administrator without resources of its own.
    pub may_everything: bool,
    topics: Permissions,
    /// By their names without the prefix of retry topics.
    groups: Permissions,
}

impl Account {
    fn new(rules: &AccountRules) -> Self {
        let mut topics = Permissions::new(rules.default_topic);
        let mut groups = Permissions::new(rules.default_group);
        for (resource, permission) in &rules.resources {
            let resource = resource.as_bytes();
            let (table, name) = match resource.strip_prefix(RETRY_PREFIX) {
                Some(group) => (&mut groups, group),
                None => (&mut topics, resource),
            };
            table.by_name.insert(name.into(), *permission);
        }
        Self {
            key: rules.access_key.as_bytes().into(),
            signing: SigningKey::new(rules.secret_key.as_bytes()),
            may_everything: rules.may_everything,
            topics,
            groups,
        }
    }

    /// Whether it may do something with a topic; a retry topic is the group that has it.
    #[inline]
    #[must_use]
    pub fn may(&self, topic: &[u8], need: u8) -> bool {
        match topic.strip_prefix(RETRY_PREFIX) {
            Some(group) => self.groups.allows(group, need),
            None => self.topics.allows(topic, need),
        }
    }

    /// Whether it may do something as a member of a group.
    #[inline]
    #[must_use]
    pub fn may_as_group(&self, group: &[u8], need: u8) -> bool {
        self.groups.allows(group, need)
    }
}

/// All accounts.
#[derive(Debug, Default)]
pub struct Accounts {
    all: Vec<Account>,
    by_key: HashMap<Box<[u8]>, u32>,
}

impl Accounts {
    /// The accounts of these rules; of two with the same key the last one.
    #[must_use]
    pub fn new(rules: &[AccountRules]) -> Self {
        let mut accounts = Self::default();
        for rules in rules {
            let account = Account::new(rules);
            if let Some(place) = accounts.by_key.get(&account.key) {
                accounts.all[*place as usize] = account;
            } else {
                accounts.by_key.insert(account.key.clone(), accounts.all.len() as u32);
                accounts.all.push(account);
            }
        }
        accounts
    }

    /// The account of a key; `hint` is examined first, and becomes its number.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8], hint: &mut u32) -> Option<&Account> {
        if let Some(account) = self.all.get(*hint as usize)
            && *account.key == *key
        {
            return Some(account);
        }
        *hint = *self.by_key.get(key)?;
        self.all.get(*hint as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{MAY_PUB, MAY_SUB};

    fn rules(access_key: &str, resources: &[(&str, u8)]) -> AccountRules {
        AccountRules {
            access_key: access_key.to_owned(),
            secret_key: "a secret".to_owned(),
            may_everything: false,
            default_topic: MAY_DENY,
            default_group: MAY_SUB,
            resources: resources.iter().map(|(name, bits)| ((*name).to_owned(), *bits)).collect(),
        }
    }

    #[test]
    fn an_account_may_what_its_resources_or_defaults_say() {
        let resources = [
            ("T", MAY_PUB),
            ("Both", MAY_PUB | MAY_SUB),
            ("Never", MAY_DENY | MAY_PUB),
            ("%RETRY%G", MAY_DENY),
            ("G", MAY_PUB),
        ];
        let accounts = Accounts::new(&[rules("one", &resources)]);
        let account = accounts.find(b"one", &mut NO_ACCOUNT.clone()).unwrap();
        let may = |topic: &[u8]| (account.may(topic, MAY_PUB), account.may(topic, MAY_SUB));
        assert_eq!(may(b"T"), (true, false));
        assert_eq!(may(b"Both"), (true, true));
        assert_eq!(may(b"Never"), (false, false));
        assert_eq!(may(b"Other"), (false, false));
        assert_eq!(may(b"%RETRY%G"), (false, false));
        assert_eq!(may(b"%RETRY%Other"), (false, true));
        assert!(!account.may_as_group(b"G", MAY_SUB) && account.may_as_group(b"T", MAY_SUB));
        assert!(account.may_as_group(b"%RETRY%G", MAY_SUB), "a group of its own");
    }

    #[test]
    fn an_account_is_found_by_its_key_whatever_is_looked_at_first() {
        let accounts = Accounts::new(&[rules("one", &[]), rules("two", &[])]);
        for start in [NO_ACCOUNT, 0, 1, 2] {
            let mut hint = start;
            assert_eq!(&*accounts.find(b"two", &mut hint).unwrap().key, b"two");
            assert_eq!(hint, 1);
            assert!(accounts.find(b"three", &mut hint).is_none());
            assert!(accounts.find(b"", &mut hint).is_none());
        }
    }

    #[test]
    fn of_two_accounts_with_one_key_the_last_counts_whatever_is_looked_at_first() {
        let again = AccountRules { may_everything: true, ..rules("one", &[]) };
        let accounts = Accounts::new(&[rules("one", &[]), again]);
        assert!(accounts.find(b"one", &mut NO_ACCOUNT.clone()).unwrap().may_everything);
    }

    #[test]
    fn accounts_do_not_show_their_secrets() {
        let given = [rules("one", &[("T", MAY_PUB)])];
        assert!(!format!("{given:?} {:?}", Accounts::new(&given)).contains("secret"));
    }
}
