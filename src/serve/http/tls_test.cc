#include "serve/http/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/testing/temporary_folder.h"
#include "serve/testing/test_certificate.h"

namespace tandem::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TlsContextTest : public testing::Test {
 protected:
  static std::string RefusalOf(const TlsFiles& files) {
    const auto context = TlsContext::Load(files);
    EXPECT_FALSE(context.ok());
    return context.ok() ? "" : context.status().message();
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

  TemporaryFolder folder_;
};

TEST_F(TlsContextTest, TakesACertificateAndItsKey) {
  EXPECT_TRUE(TlsContext::Load(WriteCertificate(folder(), "good")).ok());
}

TEST_F(TlsContextTest, TwoPairsThatAreMixedUpAreNamed) {
  const TlsFiles one = WriteCertificate(folder(), "one");
  const TlsFiles two = WriteCertificate(folder(), "two");
  EXPECT_THAT(
      RefusalOf({one.certificate, two.key}),
      AllOf(HasSubstr("two.key: does not belong to the certificate"), HasSubstr("one.crt")));
}

TEST_F(TlsContextTest, ACertificateOutOfItsTimeIsNamed) {
  EXPECT_THAT(RefusalOf(WriteCertificate(folder(), "old", {-9, -2})),
              HasSubstr("old.crt: expired on "));
  EXPECT_THAT(RefusalOf(WriteCertificate(folder(), "new", {2, 9})),
              HasSubstr("new.crt: is valid only from "));
}

TEST_F(TlsContextTest, AKeyUnderAPassphraseIsRefusedAndAsksNobody) {
  EXPECT_THAT(RefusalOf(WriteCertificate(folder(), "locked", {}, "secret")),
              HasSubstr("locked.key: is no private key in PEM, or needs a passphrase"));
}

TEST_F(TlsContextTest, FilesThatAreNoneAreNamed) {
  const TlsFiles good = WriteCertificate(folder(), "good");
  const std::filesystem::path empty = folder() / "empty";
  std::ofstream(empty).close();
  EXPECT_THAT(RefusalOf({empty, good.key}), HasSubstr("empty: is no certificate in PEM"));
  EXPECT_THAT(RefusalOf({good.key, good.key}), HasSubstr("good.key: is no certificate in PEM"));
  EXPECT_THAT(RefusalOf({good.certificate, empty}), HasSubstr("empty: is no private key"));
  EXPECT_THAT(RefusalOf({good.certificate, folder() / "absent"}), HasSubstr("absent"));
  EXPECT_THAT(RefusalOf({good.certificate, folder()}), HasSubstr(folder().string()));
  EXPECT_THAT(RefusalOf({good.certificate, ""}), HasSubstr("both a certificate and its key"));
}

}  // namespace
}  // namespace tandem::serve
