//! The turns of a conversation: what each measures, its digest and chain, whether it may be offered, and the newest that fit.
//!
//! `T` is the caller's handle to the messages of a turn. Texts are generalised UTF-8.

use crate::digest::{Digest, chain, digest};
use crate::json::{Surrogates, write_string};
use crate::ledger::Column;

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the four roles of a chat")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// Why a turn cannot be offered as history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "as_str says it in words")]
pub enum Fault {
    NoUser,
    CallWithoutResult,
    ResultWithoutCall,
    NoAnswer,
}

/// The id of a call, or of the call that a result belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Id {
    /// There is none.
    None,
    /// A text.
    Text(Box<[u8]>),
    /// Something else, which is equal to nothing.
    Other,
}

/// What the rule of complete turns looks at.
pub struct Spoken {
    /// Who speaks.
    pub role: Role,
    /// Whether there is text in it; only looked at in the last message.
    pub says: bool,
    /// The calls that it makes.
    pub calls: Vec<Id>,
    /// For results: the call it belongs to.
    pub result_of: Id,
}

/// What the canonical text of a message is made of.
pub struct Part<'a> {
    /// Who speaks.
    pub role: Role,
    /// The content.
    pub content: &'a [u8],
    /// The JSON of all other fields, each with a comma in front.
    pub rest: &'a [u8],
}

/// What is known of a turn when it is added.
pub struct Measured {
    /// Its tokens.
    pub tokens: i64,
    /// The digest of its canonical text.
    pub digest: Digest,
    /// Why it cannot be offered.
    pub fault: Option<Fault>,
}

impl Role {
    /// The role of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::User, Self::Assistant, Self::Tool, Self::System].into_iter().find(|role| role.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl Fault {
    /// All of them; the number of one in a record is its place here, from 1.
    pub const ALL: [Self; 4] = [Self::NoUser, Self::CallWithoutResult, Self::ResultWithoutCall, Self::NoAnswer];

    /// The words that are shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoUser => "no user message",
            Self::CallWithoutResult => "tool call without result",
            Self::ResultWithoutCall => "tool result without call",
            Self::NoAnswer => "no answer",
        }
    }
}

/// Whether a message of this role begins a turn.
pub fn begins(role: Role, before: Option<Role>) -> bool {
    before.is_none() || (role == Role::User && before != Some(Role::User))
}

/// Why a turn cannot be offered, or `None`: it begins with the user, ends with an answer in text, and every call has its result.
pub fn fault(turn: &[Spoken]) -> Option<Fault> {
    if turn.first().is_none_or(|first| first.role != Role::User) {
        return Some(Fault::NoUser);
    }
    let mut waiting: Vec<Id> = Vec::new();
    for message in turn {
        match message.role {
            Role::Tool => {
                let wanted = &message.result_of;
                let same = |id: &Id| id == wanted && *wanted != Id::Other;
                if let Some(at) = waiting.iter().position(same) {
                    waiting.remove(at);
                } else if !waiting.is_empty() && (*wanted == Id::None || waiting.contains(&Id::None)) {
                    waiting.remove(0);
                } else {
                    return Some(Fault::ResultWithoutCall);
                }
            }
            _ if !waiting.is_empty() => return Some(Fault::CallWithoutResult),
            Role::Assistant => waiting.clone_from(&message.calls),
            _ => {}
        }
    }
    if !waiting.is_empty() {
        return Some(Fault::CallWithoutResult);
    }
    turn.last().filter(|last| last.role != Role::Assistant || !last.says).map(|_| Fault::NoAnswer)
}

/// Whether a text has anything but white space, as Python's `strip` sees it.
pub fn says(text: &[u8]) -> bool {
    if text.first().is_some_and(u8::is_ascii_graphic) {
        return true;
    }
    let blank = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    // A lone surrogate is no white space, and neither is what stands for it here. Most texts say something in their first bytes.
    let head = (0..=text.len().min(64)).rev().find(|&end| text.get(end).is_none_or(|byte| byte & 0xC0 != 0x80));
    let says = |text: &[u8]| !String::from_utf8_lossy(text).chars().all(blank);
    says(&text[..head.unwrap_or(0)]) || says(text)
}

/// The digest of a turn's canonical text; `buffer` is room to work in.
pub fn canonical_digest(turn: &[Part<'_>], buffer: &mut Vec<u8>) -> Digest {
    buffer.clear();
    buffer.push(b'[');
    for &Part { role, content, rest } in turn {
        if buffer.len() > 1 {
            buffer.push(b',');
        }
        buffer.extend(b"{\"role\":\"");
        buffer.extend(role.as_str().as_bytes());
        buffer.extend(b"\",\"content\":");
        write_string(buffer, content, Surrogates::Kept);
        buffer.extend(rest);
        buffer.push(b'}');
    }
    buffer.push(b']');
    digest(buffer)
}

/// All turns of a conversation, in order.
pub struct Turns<T> {
    kept: Vec<T>,
    column: Column,
    digests: Vec<Digest>,
    chains: Vec<Digest>,
    faults: Vec<Option<Fault>>,
    /// The numbers of the turns that may be offered, and of those that may not.
    complete: [Vec<usize>; 2],
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            column: Column::new(),
            digests: Vec::new(),
            chains: Vec::new(),
            faults: Vec::new(),
            complete: [Vec::new(), Vec::new()],
        }
    }
}

impl<T> Turns<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The chain digest of a turn that would follow now.
    pub fn next_chain(&self, own: &Digest) -> Digest {
        chain(self.chains.last(), own)
    }

    /// Adds a turn and returns its number. An incomplete one measures nothing, so that sums over the rest stay sums over neighbours.
    pub fn push(&mut self, kept: T, measured: Measured, chain: Option<Digest>) -> usize {
        let Measured { tokens, digest, fault } = measured;
        let number = self.len();
        self.chains.push(chain.unwrap_or_else(|| self.next_chain(&digest)));
        self.kept.push(kept);
        self.column.push((if fault.is_none() { tokens } else { 0 }, None));
        self.digests.push(digest);
        self.faults.push(fault);
        self.complete[usize::from(fault.is_some())].push(number);
        number
    }

    /// The handle of a turn.
    pub fn kept(&self, i: usize) -> &T {
        &self.kept[i]
    }

    /// The same, to put something else there.
    pub fn kept_mut(&mut self, i: usize) -> &mut T {
        &mut self.kept[i]
    }

    /// The handles of the complete turns from `start` on.
    pub fn offered(&self, start: usize) -> impl Iterator<Item = &T> {
        self.kept[start..].iter().zip(&self.faults[start..]).filter(|(_, fault)| fault.is_none()).map(|(kept, _)| kept)
    }

    /// Tokens.
    pub fn column(&self) -> &Column {
        &self.column
    }

    /// Digest of a turn's canonical text.
    pub fn digest(&self, i: usize) -> &Digest {
        &self.digests[i]
    }

    /// Covers a turn and all before it.
    pub fn chain(&self, i: usize) -> &Digest {
        &self.chains[i]
    }

    /// Why a turn cannot be offered.
    pub fn fault(&self, i: usize) -> Option<Fault> {
        self.faults[i]
    }

    /// The numbers of the complete turns, or of the others.
    pub fn numbers(&self, complete: bool) -> &[usize] {
        &self.complete[usize::from(!complete)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(role: Role, calls: &[Id], result_of: Id) -> Spoken {
        Spoken { role, says: calls.is_empty(), calls: calls.to_vec(), result_of }
    }

    #[test]
    fn complete_and_incomplete() {
        use Role::{Assistant, Tool, User};
        let say = |role| spoken(role, &[], Id::None);
        let text = |id: &[u8]| Id::Text(id.into());
        let (a, b) = (|| text(b"a"), || text(b"b"));
        let call = |ids: &[Id]| spoken(Assistant, ids, Id::None);
        let result = |id| spoken(Tool, &[], id);
        for (turn, wanted) in [
            (vec![say(User), say(Assistant)], None),
            (vec![], Some(Fault::NoUser)),
            (vec![say(Assistant)], Some(Fault::NoUser)),
            (vec![say(User)], Some(Fault::NoAnswer)),
            (vec![say(User), call(&[a(), b()]), result(b()), result(a()), say(Assistant)], None),
            (vec![say(User), call(&[a(), b()]), result(b()), say(Assistant)], Some(Fault::CallWithoutResult)),
            (vec![say(User), call(&[a()])], Some(Fault::CallWithoutResult)),
            (vec![say(User), call(&[a()]), result(b()), say(Assistant)], Some(Fault::ResultWithoutCall)),
            (vec![say(User), call(&[Id::None]), result(b()), say(Assistant)], None),
            (vec![say(User), call(&[Id::Other]), result(Id::Other), say(Assistant)], Some(Fault::ResultWithoutCall)),
            (vec![say(User), call(&[Id::Other]), result(Id::None), say(Assistant)], None),
        ] {
            assert_eq!(fault(&turn), wanted);
        }
    }

    #[test]
    fn white_space_says_nothing() {
        for blank in ["", " \n\t", "\u{3000}\u{1c}\u{1f}\u{85}\u{a0}"] {
            assert!(!says(blank.as_bytes()));
        }
        let late = format!("{}x", "\u{3000}".repeat(40));
        assert!(!says("\u{3000}".repeat(40).as_bytes()));
        for text in [b"x".as_slice(), late.as_bytes(), b"  x", "\u{200b}".as_bytes(), b" \xed\xa0\x80"] {
            assert!(says(text));
        }
    }

    #[test]
    fn the_canonical_text_is_compact_json() {
        let part = |role, content: &'static str, rest: &'static str| Part {
            role,
            content: content.as_bytes(),
            rest: rest.as_bytes(),
        };
        let turn = [part(Role::User, "a\n", ""), part(Role::Tool, "", ",\"tool_name\":\"t\"")];
        let wanted = r#"[{"role":"user","content":"a\n"},{"role":"tool","content":"","tool_name":"t"}]"#;
        let mut buffer = Vec::new();
        assert_eq!(canonical_digest(&turn, &mut buffer), digest(wanted.as_bytes()));
    }
}
