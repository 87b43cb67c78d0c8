//! Which patterns of a JSON schema have to hold for one text: those that `allOf`, a `$ref` or a keyword
//! beside another puts at the same place.
//!
//! The schema is a client's, so memory is linear in its parts. A place is a number, and each name,
//! reference and pattern is read once, however often references lead there.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::error::Result;
use crate::grammar_width::width;
use crate::sandbox;

/// In a schema with more parts than these it is not searched which patterns meet.
const MAX_PARTS: usize = 50_000;
/// What a `format` counts as.
const FORMAT_WIDTH: u64 = 64;

/// Patterns that have to hold for one text.
#[derive(Clone, Copy, Default)]
pub struct Common {
    pub count: u64,
    pub width: u64,
}

impl Common {
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.width = self.width.saturating_add(other.width);
    }

    pub fn cost(self) -> u64 {
        match self.count {
            0 | 1 => 0,
            count => self.width.saturating_mul(count),
        }
    }

    fn max(self, other: Self) -> Self {
        match self.cost() < other.cost() || self.width < other.width {
            true => other,
            false => self,
        }
    }
}

/// A place below a schema; 0 is the schema itself.
type Place = usize;

/// From a place to one below it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// By the number of its name.
    Property(usize),
    Item(usize),
    /// Items and properties that are not named.
    Other,
}

/// The patterns of each place below a schema.
type Places = HashMap<Place, Common>;

/// The patterns that meet in a document, as far as its schemas have been read.
pub struct Meetings<'a> {
    document: &'a Value,
    parts_left: usize,
    worst: Common,
    places: HashMap<(Place, Step), Place>,
    names: Names<'a>,
    /// Where references lead, and the widths of patterns, by the address of their text.
    targets: HashMap<*const u8, Option<&'a Value>>,
    widths: HashMap<*const u8, u64>,
    /// Targets of the references that led to the part that is being read.
    open: HashSet<*const Value>,
}

impl<'a> Meetings<'a> {
    pub fn new(document: &'a Value) -> Self {
        Self {
            document,
            parts_left: MAX_PARTS,
            worst: Common::default(),
            places: HashMap::new(),
            names: Names::default(),
            targets: HashMap::new(),
            widths: HashMap::new(),
            open: HashSet::new(),
        }
    }

    /// The worst of them.
    pub fn worst(&self) -> Common {
        self.worst
    }

    /// Whether the document has more parts than were read.
    pub fn is_cut(&self) -> bool {
        self.parts_left == 0
    }

    /// Reads one schema of the document.
    pub fn read(&mut self, schema: &'a Value) -> Result<()> {
        if !schema.as_object().is_some_and(puts_together) {
            return Ok(());
        }
        let mut found = Places::new();
        self.gather(schema, 0, &mut found)?;
        for common in found.values() {
            self.worst = self.worst.max(*common);
        }
        Ok(())
    }

    /// Adds the patterns of a schema at `place` to those that are there already.
    fn gather(&mut self, schema: &'a Value, place: Place, found: &mut Places) -> Result<()> {
        let Value::Object(members) = schema else {
            return Ok(());
        };
        if self.parts_left == 0 {
            return Ok(());
        }
        sandbox::check(0, 0)?;
        self.parts_left -= 1;
        for (key, value) in members {
            match (key.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    let known = self.widths.entry(pattern.as_ptr());
                    add(found, place, *known.or_insert_with(|| width(pattern)));
                }
                ("format", Value::String(_)) => add(found, place, FORMAT_WIDTH),
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        self.gather(part, place, found)?;
                    }
                }
                ("anyOf" | "oneOf", Value::Array(parts)) => self.gather_one(parts, place, found)?,
                ("$ref", Value::String(reference)) => {
                    if let Some(target) = self.target(reference) {
                        if self.open.insert(std::ptr::from_ref(target)) {
                            self.gather(target, place, found)?;
                            self.open.remove(&std::ptr::from_ref(target));
                        }
                    }
                }
                ("properties", Value::Object(properties)) => {
                    for (name, schema) in properties {
                        let step = Step::Property(self.names.number_of(name));
                        self.gather_below(schema, place, step, found)?;
                    }
                }
                ("patternProperties", Value::Object(properties)) => {
                    for schema in properties.values() {
                        self.gather_below(schema, place, Step::Other, found)?;
                    }
                }
                ("items" | "additionalProperties" | "additionalItems", schema) => {
                    self.gather_below(schema, place, Step::Other, found)?;
                }
                ("prefixItems", Value::Array(parts)) => {
                    for (i, schema) in parts.iter().enumerate() {
                        self.gather_below(schema, place, Step::Item(i), found)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// One of the parts holds.
    fn gather_one(&mut self, parts: &'a [Value], place: Place, found: &mut Places) -> Result<()> {
        let mut worst = Places::new();
        for part in parts {
            let mut own = Places::new();
            self.gather(part, place, &mut own)?;
            for (place, common) in own {
                let known = worst.entry(place).or_default();
                *known = known.max(common);
            }
        }
        for (place, common) in worst {
            found.entry(place).or_default().add(common);
        }
        Ok(())
    }

    fn gather_below(
        &mut self,
        schema: &'a Value,
        place: Place,
        step: Step,
        found: &mut Places,
    ) -> Result<()> {
        let next = self.places.len() + 1;
        let below = *self.places.entry((place, step)).or_insert(next);
        self.gather(schema, below, found)
    }

    fn target(&mut self, reference: &'a str) -> Option<&'a Value> {
        let document = self.document;
        let find = || {
            reference
                .strip_prefix('#')
                .and_then(|p| document.pointer(p))
        };
        *self.targets.entry(reference.as_ptr()).or_insert_with(find)
    }
}

/// Numbers of names.
#[derive(Default)]
struct Names<'a> {
    numbers: HashMap<&'a str, usize>,
    /// By the address of a name's text: equal names may stand at several.
    known: HashMap<*const u8, usize>,
}

impl<'a> Names<'a> {
    fn number_of(&mut self, name: &'a str) -> usize {
        let next = self.numbers.len();
        let numbers = &mut self.numbers;
        *self
            .known
            .entry(name.as_ptr())
            .or_insert_with(|| *numbers.entry(name).or_insert(next))
    }
}

fn add(found: &mut Places, place: Place, width: u64) {
    found
        .entry(place)
        .or_default()
        .add(Common { count: 1, width });
}

/// Whether several parts of one schema hold for the same text.
fn puts_together(members: &Map<String, Value>) -> bool {
    let parts = [
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "pattern",
        "format",
        "properties",
        "items",
    ];
    let is_list = |list: &Value| list.as_array().is_some_and(|parts| parts.len() > 1);
    members.get("allOf").is_some_and(is_list)
        || parts
            .iter()
            .filter(|part| members.contains_key(**part))
            .count()
            > 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_reference_and_pattern_is_read_once() {
        let name = "n".repeat(100_000);
        let list: Vec<Value> = (0..2)
            .map(|_| json!({"$ref": format!("#/$defs/{name}")}))
            .collect();
        let schema = json!({"allOf": list, "$defs": {name: {"pattern": "x"}}});
        let mut meetings = Meetings::new(&schema);
        for _ in 0..1000 {
            meetings.read(&schema).unwrap();
        }
        let known = [meetings.targets.len(), meetings.widths.len()];
        assert_eq!(known, [2, 1]);
        assert_eq!(meetings.worst().count, 2);
    }
}
