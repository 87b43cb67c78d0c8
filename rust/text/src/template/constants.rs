//! Refuses, before it is compiled, what a chat template must not hold: constants that fold into
//! megabytes (the compiler evaluates `"x" * 100000000` before any budget of a render exists), and
//! tags that reach for other templates.

use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Const, Expr, Spanned, Stmt};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::too_large;

const MAX_CONSTANT: usize = 1 << 20;

pub fn check(root: &Stmt) -> Result<(), Error> {
    statement(root)
}

fn statements(list: &[Stmt]) -> Result<(), Error> {
    list.iter().try_for_each(statement)
}

fn statement(stmt: &Stmt) -> Result<(), Error> {
    match stmt {
        Stmt::Template(t) => statements(&t.children),
        Stmt::EmitExpr(e) => expression(&e.expr),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
        Stmt::ForLoop(l) => {
            expression(&l.iter)?;
            optional(&l.filter_expr)?;
            statements(&l.body)?;
            statements(&l.else_body)
        }
        Stmt::IfCond(c) => {
            expression(&c.expr)?;
            statements(&c.true_body)?;
            statements(&c.false_body)
        }
        Stmt::WithBlock(w) => {
            w.assignments
                .iter()
                .try_for_each(|(_, value)| expression(value))?;
            statements(&w.body)
        }
        Stmt::Set(s) => expression(&s.expr),
        Stmt::SetBlock(s) => {
            optional(&s.filter)?;
            statements(&s.body)
        }
        Stmt::AutoEscape(a) => {
            expression(&a.enabled)?;
            statements(&a.body)
        }
        Stmt::FilterBlock(f) => {
            expression(&f.filter)?;
            statements(&f.body)
        }
        Stmt::Macro(m) => {
            expressions(&m.defaults)?;
            statements(&m.body)
        }
        Stmt::CallBlock(c) => {
            arguments(&c.call.args)?;
            expression(&c.call.expr)?;
            expressions(&c.macro_decl.defaults)?;
            statements(&c.macro_decl.body)
        }
        Stmt::Do(d) => {
            arguments(&d.call.args)?;
            expression(&d.call.expr)
        }
        Stmt::Block(_)
        | Stmt::Import(_)
        | Stmt::FromImport(_)
        | Stmt::Extends(_)
        | Stmt::Include(_) => Err(Error::new(
            ErrorKind::SyntaxError,
            "a chat template stands alone: block, extends, include and import are not allowed",
        )),
    }
}

fn expressions(list: &[Expr]) -> Result<(), Error> {
    list.iter().try_for_each(expression)
}

fn optional(expr: &Option<Expr>) -> Result<(), Error> {
    expr.iter().try_for_each(expression)
}

fn arguments(args: &[CallArg]) -> Result<(), Error> {
    args.iter().try_for_each(|arg| match arg {
        CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => {
            expression(e)
        }
    })
}

fn expression(expr: &Expr) -> Result<(), Error> {
    match expr {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(s) => {
            expression(&s.expr)?;
            [&s.start, &s.stop, &s.step]
                .into_iter()
                .try_for_each(optional)
        }
        Expr::UnaryOp(u) => expression(&u.expr),
        Expr::BinOp(_) => constant(expr).map(|_| ()),
        Expr::Compare(c) => {
            expression(&c.expr)?;
            c.ops.iter().try_for_each(|op| expression(&op.expr))
        }
        Expr::IfExpr(i) => {
            expression(&i.test_expr)?;
            expression(&i.true_expr)?;
            optional(&i.false_expr)
        }
        Expr::Filter(f) => {
            optional(&f.expr)?;
            arguments(&f.args)
        }
        Expr::Test(t) => {
            expression(&t.expr)?;
            arguments(&t.args)
        }
        Expr::GetAttr(g) => expression(&g.expr),
        Expr::GetItem(g) => {
            expression(&g.expr)?;
            expression(&g.subscript_expr)
        }
        Expr::Call(c) => {
            expression(&c.expr)?;
            arguments(&c.args)
        }
        Expr::List(l) => expressions(&l.items),
        Expr::Map(m) => {
            expressions(&m.keys)?;
            expressions(&m.values)
        }
    }
}

/// What the expression folds into, if it is constant, and small. Operands come first, and each is
/// folded once: a sum of thousands of terms is as deep as it is long.
fn constant(expr: &Expr) -> Result<Option<Value>, Error> {
    let Expr::BinOp(op) = expr else {
        expression(expr)?;
        return Ok(expr.as_const());
    };
    let (Some(left), Some(right)) = (constant(&op.left)?, constant(&op.right)?) else {
        return Ok(None);
    };
    check_size(op.op, &left, &right)?;
    let literal = |value| Expr::Const(Spanned::new(Const { value }, op.span()));
    let folded = BinOp {
        op: op.op,
        left: literal(left),
        right: literal(right),
    };
    Ok(Expr::BinOp(Spanned::new(folded, op.span())).as_const())
}

fn check_size(op: BinOpKind, left: &Value, right: &Value) -> Result<(), Error> {
    let folded = match op {
        BinOpKind::Add | BinOpKind::Concat => size(left) + size(right),
        BinOpKind::Mul => {
            let count = |v: &Value| usize::try_from(v.clone()).unwrap_or(1);
            let by_right = size(left).saturating_mul(count(right));
            by_right.max(size(right).saturating_mul(count(left)))
        }
        _ => 0,
    };
    match folded > MAX_CONSTANT {
        true => Err(too_large("holds a constant of more than 1 MiB")),
        false => Ok(()),
    }
}

/// Numbers have no size: their products are bounded by their type.
fn size(value: &Value) -> usize {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            value.len().unwrap_or(MAX_CONSTANT)
        }
        _ => 0,
    }
}
