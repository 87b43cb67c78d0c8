#include "tensor/torch_pickle.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/little_endian.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "tensor/pickle_opcodes.h"
#include "tensor/tensor_file.h"

namespace tandem {
namespace {

constexpr size_t kMaxPickleBytes = 16u << 20;  // a tensor takes about 160
constexpr size_t kMaxValues = 4u << 20;        // put on the stack; a tensor takes about 25
constexpr size_t kMaxDimensions = 64;          // torch's own limit
constexpr uint8_t kProtocol = 2;               // what torch.save writes unless told otherwise

constexpr std::string_view kFix =
    "; only a dictionary of plain tensors is read, and nothing in the file is run: save "
    "model.state_dict() with torch.save, or the model as safetensors";

// What a name in the pickle stands for here.
enum class Role : uint8_t { kOrderedDict, kTensor, kTensorOfType, kParameter, kStorage, kType };
struct Global {
  std::string_view module;
  std::string_view name;
  Role role;
  std::optional<DType> dtype = std::nullopt;
};
constexpr std::array kGlobals = {
    Global{"collections", "OrderedDict", Role::kOrderedDict},
    Global{"torch._utils", "_rebuild_tensor_v2", Role::kTensor},
    Global{"torch._utils", "_rebuild_tensor_v3", Role::kTensorOfType},
    Global{"torch._utils", "_rebuild_parameter", Role::kParameter},
    Global{"torch", "FloatStorage", Role::kStorage, DType::kF32},
    Global{"torch", "HalfStorage", Role::kStorage, DType::kF16},
    Global{"torch", "BFloat16Storage", Role::kStorage, DType::kBF16},
    Global{"torch", "CharStorage", Role::kStorage, DType::kI8},
    Global{"torch", "ByteStorage", Role::kStorage, DType::kU8},
    Global{"torch", "BoolStorage", Role::kStorage, DType::kU8},
    Global{"torch", "IntStorage", Role::kStorage, DType::kI32},
    Global{"torch", "LongStorage", Role::kStorage, DType::kI64},
    // Types without a storage class: the tensor says which it is.
    Global{"torch.storage", "UntypedStorage", Role::kStorage},
    Global{"torch", "float8_e4m3fn", Role::kType, DType::kF8E4M3},
};

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kString,
  kList,  // always empty: nothing is appended
  kTuple,
  kDict,
  kGlobal,
  kStorage,
  kTensor,
};

std::string_view Describe(Kind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "None",    "a boolean",    "an integer",    "a string",       "a list",
      "a tuple", "a dictionary", "a Python name", "a bare storage", "a tensor",
  };
  return kNames[static_cast<size_t>(kind)];
}

// A value on the stack. Objects are in the vector of their kind: a value that refers to itself, or
// that occurs a million times, is harmless.
struct Value {
  Kind kind = Kind::kNone;
  int64_t number = 0;  // of a boolean or an integer; else the index in the vector of its kind
  std::string_view text = {};  // of a string
};

struct Items {
  size_t begin = 0;
  size_t count = 0;
};
struct Storage {
  std::string_view name;
  std::optional<DType> dtype;
  int64_t count = 0;  // elements; bytes if there is no dtype
};
struct TensorObject {
  Value storage;
  DType dtype = DType::kF32;
  int64_t offset = 0;  // elements
  Value shape;         // a tuple of integers, as are the strides
  Value strides;
};

// The layout of a tensor, checked. The error does not name the tensor.
Result<PickledTensor> Settle(std::string_view name, const Storage& storage, DType dtype,
                             int64_t offset, std::span<const int64_t> dims,
                             std::span<const int64_t> strides) {
  if (dims.size() > Shape::kMaxRank) {
    return Unimplemented(fmt::format("it has {} dimensions, more than the {} supported",
                                     dims.size(), Shape::kMaxRank));
  }
  if (strides.size() != dims.size()) return DataLoss("its shape and strides differ in length");
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  int64_t bytes = element_bytes;
  for (const int64_t dim : dims) {
    if (dim < 0) return DataLoss("its shape has a negative dimension");
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return DataLoss("its shape overflows");
  }
  int64_t dense = 1;
  for (size_t i = dims.size(); i-- > 0 && bytes > 0;) {
    if (dims[i] > 1 && strides[i] != dense) {
      return Unimplemented(
          "its rows are not one after the other (it is transposed, expanded or a slice of "
          "columns); call .contiguous() on it before saving");
    }
    dense *= dims[i];
  }
  const Shape shape = Shape::Of(dims);
  int64_t storage_bytes = 0;
  const int64_t storage_element = storage.dtype ? static_cast<int64_t>(SizeOf(*storage.dtype)) : 1;
  int64_t begin = 0;
  if (storage.count < 0 || offset < 0 ||
      __builtin_mul_overflow(storage.count, storage_element, &storage_bytes) ||
      __builtin_mul_overflow(offset, element_bytes, &begin) || begin > storage_bytes ||
      bytes > storage_bytes - begin) {
    return DataLoss(fmt::format("its {} elements from {} on are not inside its storage of {}",
                                shape.ToString(), offset, storage.count));
  }
  return PickledTensor{.name = name,
                       .dtype = dtype,
                       .shape = shape,
                       .storage = storage.name,
                       .storage_bytes = static_cast<uint64_t>(storage_bytes),
                       .begin = static_cast<uint64_t>(begin)};
}

class PickleReader {
 public:
  explicit PickleReader(std::string_view pickle) : pickle_(pickle) {}

  Result<std::vector<PickledTensor>> Read() {
    TANDEM_RETURN_IF_ERROR(ReadProtocol());
    do {
      TANDEM_RETURN_IF_ERROR(NextOpcode());
      TANDEM_RETURN_IF_ERROR(Interpret());
    } while (!Is(PickleOp::kStop));
    return Finish();
  }

 private:
  bool Is(PickleOp op) const { return opcode_ == static_cast<uint8_t>(op); }
  std::string Here() const {
    const std::string_view name = NameOfPickleOp(opcode_);
    if (name.empty())
      return fmt::format("unknown opcode 0x{:02x} at byte {}: ", opcode_, opcode_begin_);
    return fmt::format("opcode {} at byte {}: ", name, opcode_begin_);
  }
  Status Broken(std::string_view what) const { return DataLoss(Here() + std::string(what)); }
  Status Refuse(std::string_view what) const {
    return Unimplemented(Here() + std::string(what) + std::string(kFix));
  }

  Status ReadProtocol() {
    if (pickle_.size() > kMaxPickleBytes) {
      return Unimplemented(fmt::format("it has {} bytes, more than the {} supported",
                                       pickle_.size(), kMaxPickleBytes));
    }
    TANDEM_RETURN_IF_ERROR(NextOpcode());
    if (!Is(PickleOp::kProto)) return Broken("a pickle begins with PROTO");
    TANDEM_ASSIGN_OR_RETURN(const auto protocol, Number<uint8_t>());
    if (protocol == kProtocol) return {};
    return Unimplemented(fmt::format("{}pickle protocol {}; save with torch's default, {}", Here(),
                                     protocol, kProtocol));
  }

  Status NextOpcode() {
    if (at_ == pickle_.size()) return DataLoss(fmt::format("truncated at byte {}", at_));
    opcode_begin_ = at_;
    opcode_ = static_cast<uint8_t>(pickle_[at_++]);
    return {};
  }

  Status Interpret() {
    switch (static_cast<PickleOp>(opcode_)) {
      case PickleOp::kStop:
        return {};
      case PickleOp::kMark:
        marks_.push_back(stack_.size());
        return CountValue();
      case PickleOp::kNone:
        return Push({.kind = Kind::kNone});
      case PickleOp::kNewTrue:
        return Push({.kind = Kind::kBool, .number = 1});
      case PickleOp::kNewFalse:
        return Push({.kind = Kind::kBool, .number = 0});
      case PickleOp::kBinInt:
        return PushNumber<int32_t>();
      case PickleOp::kBinInt1:
        return PushNumber<uint8_t>();
      case PickleOp::kBinInt2:
        return PushNumber<uint16_t>();
      case PickleOp::kLong1:
        return PushLong();
      case PickleOp::kBinUnicode:
        return PushString();
      case PickleOp::kEmptyList:
        return Push({.kind = Kind::kList});
      case PickleOp::kEmptyDict:
        return PushDict();
      case PickleOp::kEmptyTuple:
        return PushTuple(0);
      case PickleOp::kTuple1:
        return PushTuple(1);
      case PickleOp::kTuple2:
        return PushTuple(2);
      case PickleOp::kTuple3:
        return PushTuple(3);
      case PickleOp::kTuple: {
        TANDEM_ASSIGN_OR_RETURN(const size_t count, PopMark());
        return PushTuple(count);
      }
      case PickleOp::kSetItem:
        return SetItems(2);
      case PickleOp::kSetItems: {
        TANDEM_ASSIGN_OR_RETURN(const size_t count, PopMark());
        return SetItems(count);
      }
      case PickleOp::kBinPut:
        return Put<uint8_t>();
      case PickleOp::kLongBinPut:
        return Put<uint32_t>();
      case PickleOp::kBinGet:
        return Get<uint8_t>();
      case PickleOp::kLongBinGet:
        return Get<uint32_t>();
      case PickleOp::kGlobal:
        return PushGlobal();
      case PickleOp::kBinPersId:
        return PushStorage();
      case PickleOp::kReduce:
        return Reduce();
      case PickleOp::kBuild:
        return Build();
      case PickleOp::kProto:
        return Broken("a pickle has one PROTO, at its beginning");
    }
    return Refuse("it is not needed for plain tensors");
  }

  // The next bytes of the opcode's argument.
  Result<std::string_view> Take(uint64_t bytes) {
    if (bytes > pickle_.size() - at_) return Broken("its argument is truncated");
    const std::string_view taken = pickle_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <typename T>
  Result<T> Number() {
    TANDEM_ASSIGN_OR_RETURN(const std::string_view bytes, Take(sizeof(T)));
    return LoadLittleEndian<T>(bytes.data());
  }
  Result<std::string_view> Line() {
    const size_t end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) return Broken("its argument is truncated");
    const std::string_view line = pickle_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  Status CountValue() {
    if (++num_values_ <= kMaxValues) return {};
    return Unimplemented(Here() + fmt::format("more than {} values", kMaxValues));
  }
  Status Push(Value value) {
    stack_.push_back(value);
    return CountValue();
  }
  Status PushIndex(Kind kind, size_t index) {
    return Push({.kind = kind, .number = static_cast<int64_t>(index)});
  }
  template <typename T>
  Status PushNumber() {
    TANDEM_ASSIGN_OR_RETURN(const T number, Number<T>());
    return Push({.kind = Kind::kInt, .number = number});
  }
  Status PushLong() {
    TANDEM_ASSIGN_OR_RETURN(const auto length, Number<uint8_t>());
    TANDEM_ASSIGN_OR_RETURN(const std::string_view bytes, Take(length));
    if (length > sizeof(int64_t)) return Broken("its number does not fit into 64 bits");
    uint64_t number = length > 0 && static_cast<int8_t>(bytes.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = length; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
    return Push({.kind = Kind::kInt, .number = static_cast<int64_t>(number)});
  }
  Status PushString() {
    TANDEM_ASSIGN_OR_RETURN(const auto length, Number<uint32_t>());
    TANDEM_ASSIGN_OR_RETURN(const std::string_view text, Take(length));
    return Push({.kind = Kind::kString, .text = text});
  }
  Status PushDict() {
    dicts_.emplace_back();
    return PushIndex(Kind::kDict, dicts_.size() - 1);
  }
  Status PushTuple(size_t count) {
    TANDEM_RETURN_IF_ERROR(NeedValues(count));
    const auto first = stack_.end() - static_cast<ptrdiff_t>(count);
    tuples_.push_back({.begin = items_.size(), .count = count});
    items_.insert(items_.end(), first, stack_.end());
    stack_.erase(first, stack_.end());
    return PushIndex(Kind::kTuple, tuples_.size() - 1);
  }
  Status PushGlobal() {
    TANDEM_ASSIGN_OR_RETURN(const std::string_view module, Line());
    TANDEM_ASSIGN_OR_RETURN(const std::string_view name, Line());
    for (size_t i = 0; i < kGlobals.size(); ++i) {
      if (kGlobals[i].module == module && kGlobals[i].name == name) {
        return PushIndex(Kind::kGlobal, i);
      }
    }
    constexpr size_t kMaxShown = 80;
    return Refuse(fmt::format("{}.{} is not read", Printable(module.substr(0, kMaxShown)),
                              Printable(name.substr(0, kMaxShown))));
  }

  // The number of values above the last mark, which is taken away.
  Result<size_t> PopMark() {
    if (marks_.empty()) return Broken("there is no mark on the stack");
    const size_t mark = marks_.back();
    marks_.pop_back();
    return stack_.size() - mark;
  }
  // At least `count` values are on the stack above the last mark.
  Status NeedValues(size_t count) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    return stack_.size() - floor >= count ? Status() : Broken("the stack has too few values");
  }
  // The value on top, which has to be of this kind; Pop takes it away.
  Result<Value> Top(Kind kind) const {
    TANDEM_RETURN_IF_ERROR(NeedValues(1));
    const Value top = stack_.back();
    if (top.kind == kind) return top;
    return Broken(fmt::format("it needs {}, not {}", Describe(kind), Describe(top.kind)));
  }
  Result<Value> Pop(Kind kind) {
    auto top = Top(kind);
    if (top.ok()) stack_.pop_back();
    return top;
  }

  std::span<const Value> ItemsOf(const Value& tuple) const {
    const auto [begin, count] = tuples_[static_cast<size_t>(tuple.number)];
    return std::span(items_).subspan(begin, count);
  }
  std::vector<Value>& ItemsOfDict(const Value& dict) {
    return dicts_[static_cast<size_t>(dict.number)];
  }
  static const Global& GlobalOf(const Value& value) {
    return kGlobals[static_cast<size_t>(value.number)];
  }
  static bool AreOf(std::span<const Value> values, std::initializer_list<Kind> kinds) {
    return std::ranges::equal(values, kinds, {}, &Value::kind);
  }
  bool AreSizes(const Value& tuple) const {
    const auto items = ItemsOf(tuple);
    return items.size() <= kMaxDimensions &&
           std::ranges::all_of(items, [](const Value& v) { return v.kind == Kind::kInt; });
  }
  std::vector<int64_t> Sizes(const Value& tuple) const {
    std::vector<int64_t> sizes;
    for (const Value& value : ItemsOf(tuple)) sizes.push_back(value.number);
    return sizes;
  }

  Status SetItems(size_t count) {
    TANDEM_RETURN_IF_ERROR(NeedValues(count));
    if (count % 2 != 0) return Broken("a key has no value");
    const std::vector<Value> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    TANDEM_ASSIGN_OR_RETURN(const Value dict, Top(Kind::kDict));
    std::vector<Value>& all = ItemsOfDict(dict);
    all.insert(all.end(), items.begin(), items.end());
    return {};
  }

  // Indices are given out in order, so the memo is no larger than the pickle.
  template <typename T>
  Status Put() {
    TANDEM_ASSIGN_OR_RETURN(const T index, Number<T>());
    TANDEM_RETURN_IF_ERROR(NeedValues(1));
    if (index > memo_.size()) return Broken("its index is out of order");
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = stack_.back();
    return {};
  }
  template <typename T>
  Status Get() {
    TANDEM_ASSIGN_OR_RETURN(const T index, Number<T>());
    if (index >= memo_.size()) return Broken("nothing was kept under its index");
    return Push(memo_[index]);
  }

  // A persistent id is ('storage', type, name, device, count).
  Status PushStorage() {
    TANDEM_ASSIGN_OR_RETURN(const Value id, Pop(Kind::kTuple));
    const auto items = ItemsOf(id);
    if (!AreOf(items, {Kind::kString, Kind::kGlobal, Kind::kString, Kind::kString, Kind::kInt}) ||
        items[0].text != "storage" || GlobalOf(items[1]).role != Role::kStorage) {
      return Refuse("its value does not name a storage");
    }
    storages_.push_back({items[2].text, GlobalOf(items[1]).dtype, items[4].number});
    return PushIndex(Kind::kStorage, storages_.size() - 1);
  }

  // What calling the names of the table would make; nothing is called.
  Status Reduce() {
    TANDEM_ASSIGN_OR_RETURN(const Value tuple, Pop(Kind::kTuple));
    TANDEM_ASSIGN_OR_RETURN(const Value callable, Pop(Kind::kGlobal));
    const auto arguments = ItemsOf(tuple);
    const Global& global = GlobalOf(callable);
    switch (global.role) {
      case Role::kOrderedDict:
        if (arguments.empty()) return PushDict();
        break;
      case Role::kTensor:
        if (IsTensor(arguments) && StorageOf(arguments[0]).dtype) {
          return PushTensor(arguments, *StorageOf(arguments[0]).dtype);
        }
        break;
      case Role::kTensorOfType:
        if (arguments.empty() || arguments.back().kind != Kind::kGlobal) break;
        if (const Global& type = GlobalOf(arguments.back());
            type.role == Role::kType && IsTensor(arguments.first(arguments.size() - 1)) &&
            !StorageOf(arguments[0]).dtype) {
          return PushTensor(arguments, *type.dtype);
        }
        break;
      case Role::kParameter:
        if (AreOf(arguments, {Kind::kTensor, Kind::kBool, Kind::kDict})) return Push(arguments[0]);
        break;
      case Role::kStorage:
      case Role::kType:
        break;
    }
    return Refuse(fmt::format("{}.{} does not have the arguments of a plain tensor", global.module,
                              global.name));
  }
  // (storage, offset, shape, strides, requires_grad, backward_hooks)
  bool IsTensor(std::span<const Value> arguments) const {
    return AreOf(arguments, {Kind::kStorage, Kind::kInt, Kind::kTuple, Kind::kTuple, Kind::kBool,
                             Kind::kDict}) &&
           AreSizes(arguments[2]) && AreSizes(arguments[3]);
  }
  const Storage& StorageOf(const Value& value) const {
    return storages_[static_cast<size_t>(value.number)];
  }
  Status PushTensor(std::span<const Value> arguments, DType dtype) {
    tensors_.push_back({.storage = arguments[0],
                        .dtype = dtype,
                        .offset = arguments[1].number,
                        .shape = arguments[2],
                        .strides = arguments[3]});
    return PushIndex(Kind::kTensor, tensors_.size() - 1);
  }

  // Modules keep the versions of their parts as the attribute _metadata of the dictionary; it is of
  // no use here.
  Status Build() {
    TANDEM_ASSIGN_OR_RETURN(const Value state, Pop(Kind::kDict));
    TANDEM_RETURN_IF_ERROR(Top(Kind::kDict).status());
    const std::vector<Value>& items = ItemsOfDict(state);
    if (items.size() == 2 && items[0].kind == Kind::kString && items[0].text == "_metadata") {
      return {};
    }
    return Refuse("it sets attributes other than _metadata");
  }

  Result<std::vector<PickledTensor>> Finish() {
    if (at_ != pickle_.size()) return Broken("bytes follow");
    if (stack_.size() != 1 || !marks_.empty()) return Broken("the stack does not hold one value");
    if (stack_[0].kind != Kind::kDict) {
      return Unimplemented(fmt::format("it holds {}{}", Describe(stack_[0].kind), kFix));
    }
    const std::vector<Value>& items = ItemsOfDict(stack_[0]);
    std::vector<PickledTensor> tensors;
    std::set<std::string_view> names;
    for (size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind != Kind::kString) {
        return Unimplemented(
            fmt::format("a tensor's name is {}, not a string", Describe(items[i].kind)));
      }
      const std::string name = QuotedTensorName(items[i].text);
      if (!IsUtf8(items[i].text)) return DataLoss(name + ": its name is not UTF-8");
      if (!names.insert(items[i].text).second) return DataLoss(name + ": it is listed twice");
      const Value& value = items[i + 1];
      if (value.kind != Kind::kTensor) {
        return Unimplemented(fmt::format("{}: it is {}{}", name, Describe(value.kind), kFix));
      }
      const TensorObject& made = tensors_[static_cast<size_t>(value.number)];
      auto tensor = Settle(items[i].text, StorageOf(made.storage), made.dtype, made.offset,
                           Sizes(made.shape), Sizes(made.strides));
      if (!tensor.ok()) return tensor.status().Annotate(name);
      tensors.push_back(*std::move(tensor));
    }
    return tensors;
  }

  std::string_view pickle_;
  size_t at_ = 0;
  uint8_t opcode_ = 0;       // the one being interpreted
  size_t opcode_begin_ = 0;  // its place
  std::vector<Value> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<Value> memo_;
  size_t num_values_ = 0;
  std::vector<Value> items_;  // of all tuples
  std::vector<Items> tuples_;
  std::vector<std::vector<Value>> dicts_;  // key, value, key, value
  std::vector<Storage> storages_;
  std::vector<TensorObject> tensors_;
};

}  // namespace

Result<std::vector<PickledTensor>> ReadTorchPickle(std::string_view pickle) {
  return PickleReader(pickle).Read();
}

}  // namespace tandem
