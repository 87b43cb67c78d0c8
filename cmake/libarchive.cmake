# tandem_libarchive: libarchive with what its readers of tar and zip need. Linked statically where the distribution
# has the archive: the shared library also loads those for formats that are never read, and with them 30 MB of Unicode
# tables, into each start and each bundle.
if(TARGET tandem_libarchive)
  return()
endif()
find_package(LibArchive 3.6 REQUIRED)
find_package(ZLIB REQUIRED)
add_library(tandem_libarchive INTERFACE)
target_include_directories(tandem_libarchive INTERFACE ${LibArchive_INCLUDE_DIRS})

find_library(TANDEM_LIBARCHIVE_STATIC libarchive.a)
set(codecs bz2 lzma zstd nettle)
set(libraries ${TANDEM_LIBARCHIVE_STATIC})
foreach(codec IN LISTS codecs)
  find_library(TANDEM_LIBARCHIVE_${codec} ${codec})
  list(APPEND libraries ${TANDEM_LIBARCHIVE_${codec}})
endforeach()
if(NOT "${libraries}" MATCHES "NOTFOUND")
  set(CMAKE_REQUIRED_INCLUDES ${LibArchive_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${libraries} ZLIB::ZLIB)
  include(CheckCSourceCompiles)
  check_c_source_compiles(
    "#include <archive.h>
     int main(void) {
       struct archive* a = archive_read_new();
       archive_read_support_format_tar(a);
       archive_read_support_format_zip(a);
       archive_read_support_filter_gzip(a);
       archive_read_support_filter_bzip2(a);
       archive_read_support_filter_xz(a);
       archive_read_support_filter_zstd(a);
       return archive_read_free(a);
     }"
    TANDEM_LIBARCHIVE_LINKS_STATICALLY)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(TANDEM_LIBARCHIVE_LINKS_STATICALLY)
  target_link_libraries(tandem_libarchive INTERFACE ${libraries} ZLIB::ZLIB)
else()
  target_link_libraries(tandem_libarchive INTERFACE LibArchive::LibArchive)
endif()
