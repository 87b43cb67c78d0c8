# Writes version.cc with the version and the commit, only when they changed. Run at every build:
#   cmake -DSOURCE=... -DOUTPUT=... -P version.cmake
file(STRINGS ${SOURCE}/VERSION version LIMIT_COUNT 1)
# A tree that is owned by another user, or is not a checkout, has no known commit.
execute_process(
  COMMAND git -c safe.directory=* -C ${SOURCE} rev-parse --short=10 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
  set(commit unknown)
endif()
set(text "#include \"apps/cli/version.h\"

namespace tandem::apps {

std::string Version() { return \"${version}\"; }
std::string Commit() { return \"${commit}\"; }
std::string VersionLine() { return \"tandem ${version} (${commit})\"; }

}  // namespace tandem::apps
")
set(current "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} current)
endif()
if(NOT text STREQUAL current)
  file(WRITE ${OUTPUT} "${text}")
endif()
