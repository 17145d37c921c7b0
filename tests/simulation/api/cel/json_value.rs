//! JSON values as CEL values. Fields of an object are converted when an expression reads them, so
//! a rule that reads one name does not copy its object.

use std::sync::{Arc, OnceLock};

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelNull, CelString, CelUInt, MAP_TYPE, Type};
use cel::common::value::{CowVal, Val};
use serde_json::{Map, Value};

/// Converts a JSON value, which the result borrows.
pub(crate) fn from_json(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(flag) => Box::new(CelBool::from(*flag)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Box::new(CelInt::from(int)),
            (None, Some(uint)) => Box::new(CelUInt::from(uint)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => Box::new(CelList::from(items.iter().map(from_json).collect::<Vec<_>>())),
        // A map literal of CEL equals only maps of its own type. The one literal in our expressions is `{}`.
        Value::Object(fields) if fields.is_empty() => Box::new(CelMap::default()),
        Value::Object(fields) => Box::new(JsonObject { fields, keys: OnceLock::new() }),
    }
}

/// JSON object as a CEL map.
#[derive(Debug, Clone)]
struct JsonObject<'a> {
    fields: &'a Map<String, Value>,
    /// Keys as CEL values, once an expression iterates over them.
    keys: OnceLock<Vec<CelString<'a>>>,
}

impl<'a> JsonObject<'a> {
    fn field(&self, key: &dyn Val) -> Option<&'a Value> {
        self.fields.get(key.downcast_ref::<CelString<'_>>()?.inner())
    }
}

impl Val for JsonObject<'_> {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let (Some(sizer), Some(indexer)) = (other.as_sizer(), other.as_indexer()) else { return false };
        *other.get_type() == MAP_TYPE
            && *sizer.size().inner() == *self.size().inner()
            && self.fields.iter().all(|(key, value)| {
                let found = indexer.get(&CelString::from(key.as_str()));
                found.is_ok_and(|found| from_json(value).equals(found.as_ref()))
            })
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(Self { fields: self.fields, keys: OnceLock::new() })
    }
}

impl Container for JsonObject<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.field(key).is_some())
    }
}

impl Indexer for JsonObject<'_> {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let name = || key.downcast_ref::<CelString<'_>>().map_or_else(String::new, |name| name.inner().to_owned());
        let value = self.field(key).ok_or_else(|| ExecutionError::NoSuchKey(Arc::new(name())))?;
        Ok(CowVal::Owned(from_json(value)))
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(self.get(key)?.into_owned())
    }
}

impl Iterable for JsonObject<'_> {
    fn iter<'b, 'v>(&'b self) -> Box<dyn CelIterator<'b, 'v> + 'b>
    where
        Self: 'v,
    {
        let keys = self.keys.get_or_init(|| self.fields.keys().map(|key| CelString::from(key.as_str())).collect());
        Box::new(KeyIterator(keys.iter()))
    }
}

impl Sizer for JsonObject<'_> {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.fields.len()).unwrap_or(i64::MAX))
    }
}

/// Iterator over the keys of a JSON object.
struct KeyIterator<'b, 'a>(std::slice::Iter<'b, CelString<'a>>);

impl<'b, 'v, 'a: 'v> CelIterator<'b, 'v> for KeyIterator<'b, 'a> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'v)> {
        self.0.next().map(|key| key as &(dyn Val + 'v))
    }
}
