//! Weaves checks into a compiled template, so that no instruction makes or walks unbounded data.
//!
//! After an instruction that makes a value comes SETTLE, before one that compares values WEIGH on
//! both; `~` and `*` become functions that charge first; raw text goes the way of printed values,
//! where it is counted; TICK looks at the clock where native code walks a value that is not new.
//! Jump targets move along.

use minijinja::machinery::{Instruction, Instructions};

use super::guard::{CONCAT, MULTIPLY, SETTLE, TICK, WEIGH};
use Instruction as I;

pub fn guard_instructions<'s>(compiled: &Instructions<'s>) -> Instructions<'s> {
    let mut new_index = Vec::with_capacity(compiled.len() + 1);
    let mut next = 0u32;
    for i in 0..compiled.len() as u32 {
        new_index.push(next);
        next += compiled.get(i).map_or(0, |old| guarded(old).len() as u32);
    }
    new_index.push(next);

    let mut result = Instructions::new(compiled.name(), compiled.source());
    for i in 0..compiled.len() as u32 {
        let Some(old) = compiled.get(i) else { continue };
        // The first of a group is where a jump to the old instruction lands.
        for instruction in guarded(old) {
            let moved = retarget(instruction, &new_index);
            match compiled.get_line(i) {
                Some(line) => result.add_with_line(moved, line.min(u16::MAX as usize) as u16),
                None => result.add(moved),
            };
        }
    }
    result
}

fn guarded<'s>(old: &Instruction<'s>) -> Vec<Instruction<'s>> {
    let settle = || I::CallFunction(SETTLE, Some(1));
    let weigh = || I::CallFunction(WEIGH, Some(1));
    let tick = || I::CallFunction(TICK, Some(1));
    match old {
        I::EmitRaw(text) => vec![I::LoadConst((*text).into()), I::Emit],
        I::StringConcat => vec![I::CallFunction(CONCAT, Some(2))],
        I::Mul => vec![I::CallFunction(MULTIPLY, Some(2))],
        // [.., value, namespace]: settling here keeps chains of namespaces shallow.
        I::SetAttr(_) => vec![I::Swap, settle(), I::Swap, old.clone()],
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            vec![weigh(), I::Swap, weigh(), I::Swap, old.clone()]
        }
        I::GetItem => vec![old.clone(), tick()],
        I::PushLoop(_) => vec![tick(), old.clone()],
        // range() counts lazily and is bounded by itself; a loop over it pays fuel.
        I::CallFunction("range", _) => vec![old.clone()],
        I::Add
        | I::BuildList(_)
        | I::BuildMap(_)
        | I::Slice
        | I::ApplyFilter(..)
        | I::CallFunction(..)
        | I::CallMethod(..)
        | I::CallObject(_) => vec![old.clone(), settle()],
        _ => vec![old.clone()],
    }
}

fn retarget<'s>(instruction: Instruction<'s>, new_index: &[u32]) -> Instruction<'s> {
    let to = |old: u32| new_index[old as usize];
    match instruction {
        I::Iterate(t) => I::Iterate(to(t)),
        I::Jump(t) => I::Jump(to(t)),
        I::JumpIfFalse(t) => I::JumpIfFalse(to(t)),
        I::JumpIfFalseOrPop(t) => I::JumpIfFalseOrPop(to(t)),
        I::JumpIfTrueOrPop(t) => I::JumpIfTrueOrPop(to(t)),
        I::BuildMacro(name, t, flags) => I::BuildMacro(name, to(t), flags),
        other => other,
    }
}
