#include "comm/processes/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/cores.h"
#include "base/log.h"
#include "comm/processes/process_ranks.h"

namespace tandem {
namespace {

// For one that has connected to say who it is: others wait meanwhile.
constexpr Nanos kHelloTime = std::chrono::seconds(1);
constexpr Nanos kLookTime = std::chrono::seconds(1);  // between looks at those that are there
constexpr Nanos kRetryTime = std::chrono::milliseconds(100);
constexpr Nanos kSayTime = std::chrono::seconds(10);
constexpr uint64_t kMagic = 0x4b4e41526d656454;  // "TedmRANK"
constexpr uint64_t kMaxHello = 1 << 20;

// What a connection is for. Of two ranks, the later one connects to the earlier.
enum class Purpose : uint8_t { kLink, kTensors };

// The first message of a connection.
struct Hello {
  uint64_t magic = kMagic;
  Purpose purpose = Purpose::kLink;
  int32_t rank = 0;
  int32_t size = 0;
  std::string secret;
  std::string version;
  // Of kLink.
  std::string address;  // where the rank listens for those after it
  std::string place;    // as OwnPlace
};

// What rank 0 answers when all are there, or at once if it refuses.
struct Answer {
  std::string refusal;
  std::string addresses;  // of all ranks, a line each; rank 0's is known
  std::string places;     // likewise
};

Status SendHello(const Socket& socket, const Hello& hello) {
  RankMessage message;
  WireWriter writer(message);
  writer.Value(hello.magic);
  writer.Value(hello.purpose);
  writer.Value(hello.rank);
  writer.Value(hello.size);
  for (const std::string* text : {&hello.secret, &hello.version, &hello.address, &hello.place}) {
    writer.List(std::span(*text));
  }
  return SendMessage(socket, message, kHelloTime);
}
Result<Hello> ReceiveHello(const Socket& socket) {
  RankMessage message;
  TANDEM_RETURN_IF_ERROR(ReceiveMessage(socket, message, kMaxHello, kHelloTime));
  Hello hello;
  hello.magic = 0;
  WireReader reader(message);
  reader.Value(hello.magic);
  reader.Value(hello.purpose);
  reader.Value(hello.rank);
  reader.Value(hello.size);
  for (std::string* text : {&hello.secret, &hello.version, &hello.address, &hello.place}) {
    reader.List(*text);
  }
  if (!reader.complete() || hello.magic != kMagic) return DataLoss("not a rank of a model");
  return hello;
}

Status SendAnswer(const Socket& socket, const Answer& answer) {
  RankMessage message;
  WireWriter writer(message);
  for (const std::string* text : {&answer.refusal, &answer.addresses, &answer.places}) {
    writer.List(std::span(*text));
  }
  return SendMessage(socket, message, kHelloTime);
}
Result<Answer> ReceiveAnswer(const Socket& socket, Nanos timeout) {
  RankMessage message;
  TANDEM_RETURN_IF_ERROR(ReceiveMessage(socket, message, kMaxHello, timeout));
  Answer answer;
  WireReader reader(message);
  for (std::string* text : {&answer.refusal, &answer.addresses, &answer.places}) reader.List(*text);
  if (!reader.complete()) return DataLoss("no answer of rank 0");
  return answer;
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

// Takes the same time for all secrets of one length.
bool IsSecret(std::string_view given, std::string_view secret) {
  unsigned differ = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(given.size(), secret.size()); ++i) {
    differ |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i]);
  }
  return differ == 0;
}

// The machine, the cores that this process may use there, and its GPUs.
std::string OwnPlace(const std::string& gpus) {
  std::string id;  // one for each start of a machine; a file that cannot be mapped
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return fmt::format("{} {} {}", id, fmt::join(AllowedCores(), ","), gpus);
}

// The parts of OwnPlace.
struct Place {
  explicit Place(std::string_view text)
      : machine(text.substr(0, text.find(' '))),
        gpus(text.substr(text.rfind(' ') + 1)),
        on_cores(text.substr(0, text.rfind(' '))) {}

  std::string_view machine;
  std::string_view gpus;
  std::string_view on_cores;  // the machine and the cores

  bool SharesGpusWith(const Place& other) const {
    return !gpus.empty() && machine == other.machine && gpus == other.gpus;
  }
};

// The start of one process.
class Joining {
 public:
  Joining(const RankWorld& world, Nanos patience)
      : world_(world),
        end_(clock_.Now() + patience),
        say_(clock_.Now() + kSayTime),
        sockets_(static_cast<size_t>(world.size)),
        places_(static_cast<size_t>(world.size)) {
    places_[static_cast<size_t>(world.rank)] = OwnPlace(world.gpus);
  }

  Result<JoinedRanks> Join() {
    TANDEM_RETURN_IF_ERROR(world_.rank == 0 ? Lead() : Follow());
    JoinedRanks joined;
    const std::vector<Place> places(places_.begin(), places_.end());
    const Place& own = places[static_cast<size_t>(world_.rank)];
    std::vector<Socket> sockets;  // of those that have ranks
    std::optional<int> index;     // of this process among them
    for (int rank = 0; rank < world_.size; ++rank) {
      const Place& place = places[static_cast<size_t>(rank)];
      const bool same = place.on_cores == own.on_cores;
      joined.on_machine += place.machine == own.machine && rank != world_.rank ? 1 : 0;
      joined.num_on_cores += same && rank != world_.rank ? 1 : 0;
      joined.index_on_cores += same && rank < world_.rank ? 1 : 0;
      const auto before = std::span(places).first(static_cast<size_t>(rank));
      const auto shares = [&](const Place& other) { return other.SharesGpusWith(place); };
      if (std::ranges::any_of(before, shares)) continue;
      if (rank == world_.rank) index = static_cast<int>(sockets.size());
      joined.with_ranks.push_back(rank);
      sockets.push_back(std::move(sockets_[static_cast<size_t>(rank)]));
    }
    if (index) {
      const bool has_stages = world_.stages.Divide(static_cast<int>(sockets.size()));
      joined.ranks =
          MakeProcessRank(*index, std::move(sockets), has_stages ? world_.stages : Stages());
    }
    joined.links = std::move(links_);
    return joined;
  }

 private:
  Status Lead() {
    TANDEM_ASSIGN_OR_RETURN(const Listener listener, Listen());
    std::vector<std::optional<Socket>> links(static_cast<size_t>(world_.size));
    std::vector<std::string> addresses(static_cast<size_t>(world_.size));
    // One that has left meanwhile may be started again.
    const auto is_there = [&links](int rank) {
      const auto& link = links[static_cast<size_t>(rank)];
      return link.has_value() && !link->HasEnded();
    };
    const auto all_there = [&] {
      for (int rank = 1; rank < world_.size; ++rank) {
        if (!is_there(rank)) return false;
      }
      return true;
    };
    while (!all_there()) {
      TANDEM_ASSIGN_OR_RETURN(auto come, AwaitRank(listener, Purpose::kLink, is_there));
      auto& [hello, socket] = come;
      const auto rank = static_cast<size_t>(hello.rank);
      links[rank] = std::move(socket);
      addresses[rank] = hello.address;
      places_[rank] = hello.place;
    }
    const Answer answer{.refusal = {},
                        .addresses = fmt::format("{}", fmt::join(addresses, "\n")),
                        .places = fmt::format("{}", fmt::join(places_, "\n"))};
    for (int rank = 1; rank < world_.size; ++rank) {
      Socket& socket = *links[static_cast<size_t>(rank)];
      TANDEM_RETURN_IF_ERROR(SendAnswer(socket, answer).Annotate(fmt::format("rank {}", rank)));
      links_.push_back(std::make_unique<RankLink>(std::move(socket), rank));
    }
    return AwaitLater(listener);
  }

  // The name of this machine may not be known yet.
  Result<Listener> Listen() {
    for (;;) {
      Result<Listener> listener = Listener::Bind(world_.address);
      if (listener.ok()) return listener;
      if (listener.status().code() == Code::kFailedPrecondition) {
        return listener.status().Annotate(
            "process 0 must run where --leader_address is, and alone there: see --process_rank of "
            "the "
            "others");
      }
      if (listener.status().code() != Code::kUnavailable || clock_.Now() >= end_) return listener;
      Say("waiting for the address of rank 0", listener.status());
      std::this_thread::sleep_for(kRetryTime);
    }
  }

  Status Follow() {
    TANDEM_ASSIGN_OR_RETURN(Socket leader, Connect(world_.address, 0));
    const std::string host = OwnHost(leader);
    TANDEM_ASSIGN_OR_RETURN(
        const Listener listener,
        Listener::Bind(host == "unix:" ? fmt::format("{}.{}", world_.address, world_.rank)
                                       : host + ":0"));
    Hello hello = OwnHello(Purpose::kLink);
    hello.address = host == "unix:" ? host + listener.port() : host + ":" + listener.port();
    hello.place = places_[static_cast<size_t>(world_.rank)];
    TANDEM_RETURN_IF_ERROR(SendHello(leader, hello).Annotate("rank 0"));
    Result<Answer> answer = ReceiveAnswer(leader, end_ - clock_.Now());
    if (!answer.ok()) return answer.status().Annotate("rank 0");
    if (!answer->refusal.empty()) return FailedPrecondition("rank 0: " + answer->refusal);
    std::vector<std::string> addresses = Lines(answer->addresses);
    places_ = Lines(answer->places);
    if (addresses.size() != sockets_.size() || places_.size() != sockets_.size()) {
      return DataLoss("no answer of rank 0");
    }
    addresses.front() = world_.address;
    links_.push_back(std::make_unique<RankLink>(std::move(leader), 0));
    for (int rank = 0; rank < world_.rank; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(Socket socket, Connect(addresses[static_cast<size_t>(rank)], rank));
      TANDEM_RETURN_IF_ERROR(SendHello(socket, OwnHello(Purpose::kTensors)));
      sockets_[static_cast<size_t>(rank)] = std::move(socket);
    }
    return AwaitLater(listener);
  }

  // The ranks after this one connect to it for tensors.
  Status AwaitLater(const Listener& listener) {
    for (int missing = world_.size - 1 - world_.rank; missing > 0; --missing) {
      TANDEM_ASSIGN_OR_RETURN(auto come, AwaitRank(listener, Purpose::kTensors, [this](int rank) {
                                return rank <= world_.rank ||
                                       sockets_[static_cast<size_t>(rank)].is_open();
                              }));
      sockets_[static_cast<size_t>(come.first.rank)] = std::move(come.second);
    }
    return {};
  }

  Hello OwnHello(Purpose purpose) const {
    Hello hello;
    hello.purpose = purpose;
    hello.rank = world_.rank;
    hello.size = world_.size;
    hello.secret = world_.secret;
    hello.version = world_.version;
    return hello;
  }

  // The next rank that connects for this purpose. What is no rank is sent away; a rank that was
  // started with something else ends the start of all.
  template <typename IsThere>
  Result<std::pair<Hello, Socket>> AwaitRank(const Listener& listener, Purpose purpose,
                                             const IsThere& is_there) {
    for (;;) {
      const Nanos look = clock_.Now() + kLookTime;
      Result<Socket> socket = listener.Accept(std::min({end_, say_, look}) - clock_.Now());
      for (const auto& link : links_) {
        if (link->HasEnded()) return Unavailable(fmt::format("rank {} has left", link->peer()));
      }
      if (!socket.ok()) {
        if (socket.status().code() == Code::kUnauthenticated) continue;
        if (socket.status().code() != Code::kDeadlineExceeded) return socket.status();
        if (clock_.Now() >= std::min(end_, say_)) TANDEM_RETURN_IF_ERROR(SayMissing(is_there));
        continue;
      }
      Result<Hello> hello = ReceiveHello(*socket);
      if (!hello.ok()) continue;
      const auto refuse = [&socket](const std::string& why) {
        static_cast<void>(SendAnswer(*socket, {.refusal = why, .addresses = {}, .places = {}}));
      };
      if (!IsSecret(hello->secret, world_.secret)) {
        LogWarning("a process that came to {} with another secret was sent away", world_.address);
        refuse("its secret is another one: give both the same --rank_secret_file");
        continue;
      }
      if (hello->purpose != purpose || hello->rank < 1 || hello->rank >= world_.size ||
          is_there(hello->rank)) {
        refuse(fmt::format("rank {} of {} is there already, or there is none", hello->rank,
                           world_.size));
        continue;
      }
      if (hello->size != world_.size || hello->version != world_.version) {
        const std::string why = fmt::format(
            "rank {} is one of {} in version {}, rank {} is one of {} in version {}", hello->rank,
            hello->size, hello->version, world_.rank, world_.size, world_.version);
        refuse(why);
        return FailedPrecondition(why);
      }
      return std::pair(*std::move(hello), *std::move(socket));
    }
  }

  // Tells those who watch, now and then, who is waited for; an error at the end of patience.
  template <typename IsThere>
  Status SayMissing(const IsThere& is_there) {
    std::vector<int> missing;
    for (int rank = world_.rank + 1; rank < world_.size; ++rank) {
      if (!is_there(rank)) missing.push_back(rank);
    }
    const std::string who =
        fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    if (clock_.Now() >= end_) return DeadlineExceeded(who + " did not come");
    LogWarning("waiting for {} at {}", who, world_.address);
    say_ = clock_.Now() + kSayTime;
    return {};
  }

  // Rank 0 may not have started yet.
  Result<Socket> Connect(const std::string& address, int rank) {
    for (;;) {
      Result<Socket> socket = ConnectTo(address);
      if (socket.ok() || socket.status().code() != Code::kUnavailable) return socket;
      if (clock_.Now() >= end_) {
        return DeadlineExceeded(
            fmt::format("rank {} did not come: {}", rank, socket.status().message()));
      }
      Say(fmt::format("waiting for rank {}", rank), socket.status());
      std::this_thread::sleep_for(kRetryTime);
    }
  }

  // Now and then.
  void Say(const std::string& what, const Status& why) {
    if (clock_.Now() < say_) return;
    LogWarning("{}: {}", what, why.message());
    say_ = clock_.Now() + kSayTime;
  }

  const RankWorld& world_;
  const SteadyClock clock_;
  const Nanos end_;
  Nanos say_;
  std::vector<Socket> sockets_;      // for tensors, by rank
  std::vector<std::string> places_;  // by rank
  std::vector<std::unique_ptr<RankLink>> links_;
};

}  // namespace

Result<JoinedRanks> JoinRanks(const RankWorld& world, Nanos patience) {
  if (world.rank < 0 || world.rank >= world.size) {
    return InvalidArgument(fmt::format("rank {} of {}", world.rank, world.size));
  }
  return Joining(world, patience).Join();
}

}  // namespace tandem
