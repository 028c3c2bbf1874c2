//! Chat messages on their way into a conversation: from any form to what is kept, measured and hashed of them.
//!
//! Messages in a usual form are read here; all others go through the rules of `rune.messages`, whose results are the same.

use std::sync::Arc;

use pyo3::exceptions::{PyRecursionError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString, PyTuple};
use rune_kernels::json::{Surrogates, write_string};
use rune_kernels::turns::{Id, Part, Role, Spoken, begins, says};

use crate::convert::{Any, Text, refuse, text, utf8};
use crate::{parse, plain};

/// A message as it is kept.
pub(crate) struct Message {
    pub(crate) role: Role,
    content: Py<PyString>,
    rest: Option<Arc<Rest>>,
}

/// The fields that most messages do not have.
#[derive(Default)]
struct Rest {
    calls: Option<Py<PyAny>>,
    call_id: Option<Py<PyString>>,
    tool_name: Option<Py<PyString>>,
    name: Option<Py<PyString>>,
    images: Option<Py<PyAny>>,
    /// Whether calls and images are still those that were given.
    shared: bool,
}

/// A message with what is needed once, to measure and hash it.
pub(crate) struct Draft<'py> {
    py: Python<'py>,
    message: Message,
    /// The calls as JSON, and all fields behind the content as JSON.
    calls_json: Option<Text<'py>>,
    rest_json: Vec<u8>,
    images: usize,
}

/// Messages of one conversation in their order, cut into turns, and the system texts among them.
#[derive(Default)]
pub(crate) struct Drafts<'py> {
    pub(crate) messages: Vec<Draft<'py>>,
    /// Where each turn ends.
    pub(crate) ends: Vec<usize>,
    pub(crate) system: Vec<Text<'py>>,
}

/// What a message turned out to be.
enum Found {
    Plain(Message),
    /// For the rules, by itself.
    Odd,
    /// For the rules, with all others: pairs of old function calls get their ids together.
    Legacy,
}

impl Message {
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { role: self.role, content: self.content.clone_ref(py), rest: self.rest.clone() }
    }

    /// The message as a dict that shares nothing that can change.
    pub(crate) fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        let role = match self.role {
            Role::System => intern!(py, "system"),
            Role::User => intern!(py, "user"),
            Role::Assistant => intern!(py, "assistant"),
            Role::Tool => intern!(py, "tool"),
        };
        found.set_item(intern!(py, "role"), role)?;
        found.set_item(intern!(py, "content"), &self.content)?;
        if let Some(rest) = &self.rest {
            rest.add_to(&found)?;
        }
        Ok(found)
    }
}

impl Rest {
    fn add_to(&self, found: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = found.py();
        if let Some(calls) = &self.calls {
            found.set_item(intern!(py, "tool_calls"), plain::copy(calls.bind(py))?)?;
        }
        for (key, value) in self.texts() {
            found.set_item(key, value)?;
        }
        if let Some(images) = &self.images {
            found.set_item(intern!(py, "images"), plain::copy(images.bind(py))?)?;
        }
        Ok(())
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &Py<PyString>)> {
        let all = [("tool_call_id", &self.call_id), ("tool_name", &self.tool_name), ("name", &self.name)];
        all.into_iter().filter_map(|(key, value)| value.as_ref().map(|value| (key, value)))
    }
}

impl<'py> Drafts<'py> {
    /// Messages of any number of turns. `rules` is `rune.messages`, or what has its names.
    pub(crate) fn read(given: &Any<'py>, rules: &Any<'py>) -> PyResult<Self> {
        let mut found = Self::default();
        found.read_all(given, rules, false)?;
        Ok(found)
    }

    /// Messages of one turn, whatever their roles are.
    pub(crate) fn read_one(given: &Any<'py>, rules: &Any<'py>) -> PyResult<Self> {
        let mut found = Self::default();
        found.read_all(given, rules, true)?;
        if found.ends.is_empty() {
            found.ends.push(0);
        }
        Ok(found)
    }

    fn read_all(&mut self, given: &Any<'py>, rules: &Any<'py>, one_turn: bool) -> PyResult<()> {
        let listed = given.is_exact_instance_of::<PyList>() || given.is_exact_instance_of::<PyTuple>();
        if listed && self.read_each(given, rules, one_turn)? {
            return Ok(());
        }
        *self = Self::default();
        let options = PyDict::new(given.py());
        options.set_item("keep_thinking", false)?;
        self.read_each(&rules.call_method("normalise", (given,), Some(&options))?, rules, one_turn)?;
        Ok(())
    }

    /// False when the messages must be normalised together first.
    fn read_each(&mut self, given: &Any<'py>, rules: &Any<'py>, one_turn: bool) -> PyResult<bool> {
        let (mut before, mut messages) = (None, Vec::new());
        for (position, value) in given.try_iter()?.enumerate() {
            let value = value?;
            let message = match read_plain(&value, rules)? {
                Found::Plain(message) => message,
                Found::Legacy => return Ok(false),
                Found::Odd => {
                    let options = PyDict::new(value.py());
                    options.set_item("position", position)?;
                    options.set_item("keep_thinking", false)?;
                    let normal = rules.call_method("normalise_one", (&value,), Some(&options))?;
                    read_normal(normal.cast::<PyDict>()?)?
                }
            };
            if message.role == Role::System && !one_turn {
                let content = message.content.into_bound(value.py());
                if says(&utf8(&content)?) {
                    self.system.push(content);
                }
                continue;
            }
            if self.ends.is_empty() || (!one_turn && begins(message.role, before)) {
                self.ends.push(messages.len());
            }
            before = Some(message.role);
            messages.push(message);
            if let Some(end) = self.ends.last_mut() {
                *end = messages.len();
            }
        }
        self.messages.reserve(messages.len());
        let (mut messages, mut start) = (messages.into_iter(), 0);
        for &end in &self.ends {
            for (place, message) in messages.by_ref().take(end - std::mem::replace(&mut start, end)).enumerate() {
                self.messages.push(Draft::new(message, place, rules)?);
            }
        }
        Ok(true)
    }

    /// The messages of each turn.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &[Draft<'py>]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.messages[std::mem::replace(&mut start, end)..end])
    }

    /// What is kept of all of them, and where each turn ends.
    pub(crate) fn into_kept(self) -> (Vec<Message>, Vec<usize>) {
        (self.messages.into_iter().map(|draft| draft.message).collect(), self.ends)
    }
}

impl<'py> Draft<'py> {
    fn new(mut message: Message, place: usize, rules: &Any<'py>) -> PyResult<Self> {
        let py = rules.py();
        let (mut calls_json, mut rest_json, mut images) = (None, Vec::new(), 0);
        if let Some(rest) = message.rest.as_mut().and_then(Arc::get_mut) {
            if let Some(calls) = &mut rest.calls {
                let json = call_json(calls.bind(py), place, rules)?;
                rest_json.extend(b",\"tool_calls\":");
                rest_json.extend(&*utf8(&json)?);
                calls_json = Some(json);
                if rest.shared {
                    *calls = plain::copy(calls.bind(py))?.unbind();
                }
            }
            for (key, value) in rest.texts() {
                rest_json.extend([b",\"", key.as_bytes(), b"\":"].concat());
                write_string(&mut rest_json, &utf8(value.bind(py))?, Surrogates::Kept);
            }
            if let Some(given) = &mut rest.images {
                images = given.bind(py).len()?;
                rest_json.extend(b",\"images\":");
                rest_json.extend(&*utf8(&text(&rules.call_method1("compact_json", (given.bind(py),))?, "images")?)?);
                if rest.shared {
                    *given = plain::copy(given.bind(py))?.unbind();
                }
            }
        }
        Ok(Self { py, message, calls_json, rest_json, images })
    }

    /// What is measured of it: a text, and how many images there are beside it.
    pub(crate) fn measured(&self) -> PyResult<(Text<'py>, usize)> {
        let content = self.message.content.bind(self.py);
        let measured = match &self.calls_json {
            None => content.clone(),
            Some(calls) if content.is_empty()? => calls.clone(),
            Some(calls) => content.add(calls)?.cast_into()?,
        };
        Ok((measured, self.images))
    }

    /// How many characters the measured text has, and how many images there are beside it.
    pub(crate) fn length(&self) -> PyResult<(usize, usize)> {
        let calls = self.calls_json.as_ref().map_or(Ok(0), |calls| calls.len())?;
        Ok((self.message.content.bind(self.py).len()? + calls, self.images))
    }

    pub(crate) fn part<'a>(&'a self, content: &'a [u8]) -> Part<'a> {
        Part { role: self.message.role, content, rest: &self.rest_json }
    }

    pub(crate) fn bytes(&self) -> PyResult<std::borrow::Cow<'_, [u8]>> {
        utf8(self.message.content.bind(self.py))
    }

    /// The same for the rule of complete turns.
    pub(crate) fn spoken(&self, last: bool) -> PyResult<Spoken> {
        let py = self.py;
        let says = last && says(&self.bytes()?);
        let mut spoken = Spoken { role: self.message.role, says, calls: Vec::new(), result_of: Id::None };
        let Some(rest) = &self.message.rest else { return Ok(spoken) };
        if let Some(id) = &rest.call_id {
            spoken.result_of = known(Some(id.bind(py).as_any()))?;
        }
        if let Some(calls) = &rest.calls {
            for call in calls.bind(py).cast::<PyList>()?.iter() {
                let id = call.cast::<PyMapping>()?.get_item(intern!(py, "id")).ok();
                spoken.calls.push(known(id.as_ref())?);
            }
        }
        Ok(spoken)
    }
}

fn known(id: Option<&Any<'_>>) -> PyResult<Id> {
    Ok(match id {
        Some(id) if id.is_instance_of::<PyString>() => Id::Text(utf8(&text(id, "id")?)?.into()),
        Some(id) if !id.is_none() => Id::Other,
        _ => Id::None,
    })
}

/// The compact JSON of calls. Raises `InvalidInput` for calls that JSON has no words for.
fn call_json<'py>(calls: &Any<'py>, place: usize, rules: &Any<'py>) -> PyResult<Text<'py>> {
    let py = calls.py();
    let mut json = Vec::new();
    if plain::write(&mut json, calls)?
        && let Ok(json) = std::str::from_utf8(&json)
    {
        return Ok(PyString::new(py, json));
    }
    match rules.call_method1("compact_json", (calls,)) {
        Ok(json) => text(&json, "calls"),
        Err(error)
            if error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyRecursionError>(py) =>
        {
            refuse(format!("message {place} has a tool call that JSON has no words for: {}", error.value(py).str()?))
        }
        Err(error) => Err(error),
    }
}

/// A field of a message: nothing when it is not there or says nothing, an error of type `()` when it is no plain text.
fn optional<'py>(message: &Bound<'py, PyDict>, key: &Bound<'py, PyString>) -> PyResult<Result<Option<Text<'py>>, ()>> {
    Ok(match message.get_item(key)? {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => match value.cast_exact::<PyString>() {
            Ok(text) => Ok((!text.is_empty()?).then(|| text.clone())),
            Err(_) => Err(()),
        },
    })
}

fn read_plain<'py>(given: &Any<'py>, rules: &Any<'py>) -> PyResult<Found> {
    let py = given.py();
    let Ok(message) = given.cast_exact::<PyDict>() else {
        let legacy = given.is_instance_of::<PyMapping>();
        return Ok(if legacy { Found::Legacy } else { Found::Odd });
    };
    let Some(role) = message.get_item(intern!(py, "role"))? else { return Ok(Found::Odd) };
    let Ok(name) = role.cast_exact::<PyString>() else { return Ok(Found::Odd) };
    let name = name.to_str().unwrap_or_default();
    let Some(role) = Role::named(name) else {
        return Ok(if name == "function" { Found::Legacy } else { Found::Odd });
    };
    let mut others = message.len() - 1;
    let content = match message.get_item(intern!(py, "content"))? {
        None => {
            others += 1;
            PyString::new(py, "")
        }
        Some(value) if value.is_none() => PyString::new(py, ""),
        Some(value) => match value.cast_exact::<PyString>() {
            Ok(text) => text.clone(),
            Err(_) => return Ok(Found::Odd),
        },
    };
    let mut rest = None;
    if others > 1 {
        if message.contains(intern!(py, "function_call"))? {
            return Ok(Found::Legacy);
        }
        match read_rest(message, role, rules)? {
            Some(found) => rest = found.said(),
            None => return Ok(Found::Odd),
        }
    }
    Ok(Found::Plain(Message { role, content: content.unbind(), rest }))
}

/// The other fields; nothing when one of them is not in a usual form.
fn read_rest<'py>(message: &Bound<'py, PyDict>, role: Role, rules: &Any<'py>) -> PyResult<Option<Rest>> {
    let py = message.py();
    let mut rest = Rest::default();
    if message.get_item(intern!(py, "images"))?.is_some_and(|images| !images.is_none()) {
        return Ok(None);
    }
    let (Ok(id), Ok(tool), Ok(name)) = (
        optional(message, intern!(py, "tool_call_id"))?,
        optional(message, intern!(py, "tool_name"))?,
        optional(message, intern!(py, "name"))?,
    ) else {
        return Ok(None);
    };
    match role {
        Role::System => {}
        Role::Tool => {
            rest.call_id = id.map(Bound::unbind);
            rest.tool_name = tool.or(name).map(Bound::unbind);
        }
        Role::User | Role::Assistant => rest.name = name.map(Bound::unbind),
    }
    if role == Role::Assistant
        && let Some(calls) = message.get_item(intern!(py, "tool_calls"))?.filter(|calls| !calls.is_none())
    {
        let Ok(calls) = calls.cast_exact::<PyList>() else { return Ok(None) };
        if !calls.is_empty() {
            let Some(calls) = read_calls(calls, rules)? else { return Ok(None) };
            rest.calls = Some(calls.into_any().unbind());
        }
    }
    Ok(Some(rest))
}

/// Copies of calls, with their arguments as objects.
fn read_calls<'py>(calls: &Bound<'py, PyList>, rules: &Any<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
    let py = calls.py();
    let found = PyList::empty(py);
    for call in calls.iter() {
        let Ok(call) = call.cast_exact::<PyDict>() else { return Ok(None) };
        let Some(function) = call.get_item(intern!(py, "function"))? else { return Ok(None) };
        let Ok(function) = function.cast_exact::<PyDict>() else { return Ok(None) };
        if !function.get_item(intern!(py, "name"))?.is_some_and(|name| name.is_exact_instance_of::<PyString>()) {
            return Ok(None);
        }
        let arguments = match function.get_item(intern!(py, "arguments"))? {
            Some(given) if given.is_exact_instance_of::<PyDict>() => plain::copy(&given).ok(),
            Some(given) if given.is_exact_instance_of::<PyString>() => {
                let parsed = given.cast::<PyString>()?.to_str().map_or(Ok(None), |text| parse::object(py, text))?;
                Some(match parsed {
                    Some(parsed) => parsed,
                    None => rules.call_method1(intern!(py, "parsed_arguments"), (given,))?,
                })
            }
            Some(given) if !given.is_none() => None,
            _ => Some(PyDict::new(py).into_any()),
        };
        let Some(arguments) = arguments else { return Ok(None) };
        let Some(function) = copied_with(function, intern!(py, "arguments"), arguments)? else { return Ok(None) };
        let Some(call) = copied_with(call, intern!(py, "function"), function)? else { return Ok(None) };
        found.append(call)?;
    }
    Ok(Some(found))
}

/// A deep copy with another value under one key; nothing where something in it cannot be copied.
fn copied_with<'py>(
    given: &Bound<'py, PyDict>,
    key: &Bound<'py, PyString>,
    value: Any<'py>,
) -> PyResult<Option<Any<'py>>> {
    let copied = given.copy()?;
    copied.set_item(key, &value)?;
    for (name, item) in given.iter() {
        if !plain::is_atom(&item) && !name.eq(key)? {
            let Ok(item) = plain::copy(&item) else { return Ok(None) };
            copied.set_item(name, item)?;
        }
    }
    Ok(Some(copied.into_any()))
}

/// A message that the rules have normalised.
fn read_normal<'py>(message: &Bound<'py, PyDict>) -> PyResult<Message> {
    let py = message.py();
    let field = |key: &Bound<'py, PyString>| message.get_item(key);
    let words = |key: &Bound<'py, PyString>| -> PyResult<Option<Py<PyString>>> {
        field(key)?.map(|value| Ok(text(&value, key)?.unbind())).transpose()
    };
    let role = field(intern!(py, "role"))?.map(|role| text(&role, "role")).transpose()?;
    let Some(role) = role.and_then(|role| Role::named(role.to_str().unwrap_or_default())) else {
        return refuse("a normal message has a role".into());
    };
    let content = match field(intern!(py, "content"))? {
        Some(content) => text(&content, "content")?,
        None => PyString::new(py, ""),
    };
    let rest = Rest {
        calls: field(intern!(py, "tool_calls"))?.map(Bound::unbind),
        call_id: words(intern!(py, "tool_call_id"))?,
        tool_name: words(intern!(py, "tool_name"))?,
        name: words(intern!(py, "name"))?,
        images: field(intern!(py, "images"))?.map(Bound::unbind),
        shared: true,
    };
    Ok(Message { role, content: content.unbind(), rest: rest.said() })
}

impl Rest {
    /// Nothing when no field is there.
    fn said(self) -> Option<Arc<Self>> {
        let some = self.calls.is_some() || self.images.is_some() || self.texts().next().is_some();
        some.then(|| Arc::new(self))
    }
}
