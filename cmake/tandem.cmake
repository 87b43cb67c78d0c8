# Compiler settings and the two functions every folder uses: tandem_library() and tandem_test().

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
# The bundle's libraries are in lib/ next to bin/. DT_RPATH, because DT_RUNPATH does not apply to the
# libraries that they load in turn.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
add_link_options(-Wl,--disable-new-dtags)

find_program(CCACHE ccache)
if(CCACHE)
  # A build folder elsewhere in the tree hits the same cache entries.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# "Dev": optimized enough for quick tests, with every assertion of ours and of the standard library.
set(CMAKE_CXX_FLAGS_DEV "-O2 -g1 -D_GLIBCXX_ASSERTIONS" CACHE STRING "" FORCE)
set(CMAKE_C_FLAGS_DEV "-O2 -g1" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG" CACHE STRING "" FORCE)
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:C,CXX>:-Wpedantic> $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
# A difference in contraction between two compilations of one formula would break bit equality.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# GCC 12 at -O3 warns of overlaps in std::string's own code, wherever a literal is joined to one (GCC bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Wno-restrict>)
endif()
add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
if(TANDEM_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  # Warnings that follow inlined code into the libraries' headers are false with newer compilers (fmt 9
  # under GCC 13) and under the sanitizers; the plain build with GCC 12 keeps them as errors.
  if(TANDEM_SANITIZE OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    foreach(warning array-bounds stringop-overflow stringop-overread restrict maybe-uninitialized)
      add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wno-error=${warning}>)
    endforeach()
  endif()
endif()
if(TANDEM_SANITIZE)
  # The sanitizers see host code; device code has compute-sanitizer.
  foreach(flag -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${flag}>)
  endforeach()
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()

# spdlog and fmt as headers only, so that the engine needs no installed library.
add_compile_definitions(FMT_HEADER_ONLY)
find_package(Threads REQUIRED)

# tandem_library(NAME <folder> SRCS <files> DEPS <folders and libraries>)
# One static library per folder; only the DEPS are visible to it.
function(tandem_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(tandem_${ARG_NAME} STATIC ${ARG_SRCS})
  target_include_directories(tandem_${ARG_NAME} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  foreach(dep IN LISTS ARG_DEPS)
    if(TARGET tandem_${dep})
      target_link_libraries(tandem_${ARG_NAME} PUBLIC tandem_${dep})
    else()
      target_link_libraries(tandem_${ARG_NAME} PUBLIC ${dep})
    endif()
  endforeach()
endfunction()

# Seconds that a test may take. Sanitizers make the slowest ten times slower.
set(TANDEM_TEST_TIMEOUT 300)
if(TANDEM_SANITIZE)
  set(TANDEM_TEST_TIMEOUT 1500)
endif()

# The tests that run under ThreadSanitizer: those labelled "threads".
if(TANDEM_TESTS)
  add_custom_target(threads_tests)
endif()

# tandem_test(NAME <name> SRCS <files> DEPS <folders and libraries> [SHARDS <count>] [LABELS <labels>])
# A GoogleTest program; every TEST in it becomes a ctest test, run in a separate process.
function(tandem_test)
  if(NOT TANDEM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME;SHARDS" "SRCS;DEPS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_include_directories(${ARG_NAME} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  foreach(dep IN LISTS ARG_DEPS)
    if(TARGET tandem_${dep})
      target_link_libraries(${ARG_NAME} PRIVATE tandem_${dep})
    else()
      target_link_libraries(${ARG_NAME} PRIVATE ${dep})
    endif()
  endforeach()
  target_link_libraries(${ARG_NAME} PRIVATE tandem_base_testing GTest::gtest GTest::gmock GTest::gtest_main)
  # A long program runs as several tests, each with a share of its cases.
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(test ${ARG_NAME})
    if(shard GREATER 1)
      string(APPEND test "_${shard}")
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${ARG_NAME})
    set_tests_properties(${test} PROPERTIES TIMEOUT ${TANDEM_TEST_TIMEOUT} LABELS "${ARG_LABELS}"
                         ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(threads_tests ${ARG_NAME})
  endif()
endfunction()

# tandem_fuzz_test(NAME <name> SRCS <files> DEPS <folders and libraries> CORPUS <folder in tests/fuzz>)
# A program around LLVMFuzzerTestOneInput. As a test it runs the corpus and a few thousand mutations of it, the same
# ones each time; with the preset "fuzz" it is a libFuzzer program that goes on until it finds something.
option(TANDEM_FUZZ "Build the fuzz targets as libFuzzer programs" OFF)
function(tandem_fuzz_test)
  if(NOT TANDEM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME;CORPUS" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${ARG_NAME} PRIVATE tandem_${dep})
  endforeach()
  if(TANDEM_FUZZ)
    target_compile_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
    target_link_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  target_sources(${ARG_NAME} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/run_corpus.cc)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${CMAKE_SOURCE_DIR}/tests/fuzz/${ARG_CORPUS} 5000)
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${TANDEM_TEST_TIMEOUT})
endfunction()
