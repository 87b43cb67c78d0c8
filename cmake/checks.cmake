# Checks of the source itself: the order of the layers, and that each header compiles alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

add_test(NAME layers COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/check_layers.py)
add_test(NAME layers_self_test
         COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/check_layers.py --self-test)

# A header that its own .cc file includes first is known to compile alone; each of the others gets a
# file that includes only it. Part of the normal build, so a failure names the header.
function(tandem_check_headers)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.h)
  set(sources "")
  foreach(header IN LISTS headers)
    file(RELATIVE_PATH include ${CMAKE_SOURCE_DIR}/src ${header})
    if(NOT TANDEM_SERVER AND include MATCHES "^(text|serve)/")
      continue()
    endif()
    string(REGEX REPLACE "\\.h$" ".cc" source ${header})
    if(EXISTS ${source})
      file(STRINGS ${source} first_include REGEX "^#include" LIMIT_COUNT 1)
      if(first_include STREQUAL "#include \"${include}\"")
        continue()
      endif()
    endif()
    set(alone ${CMAKE_BINARY_DIR}/headers/${include}.cc)
    file(CONFIGURE OUTPUT ${alone} CONTENT "#include \"${include}\"\n" @ONLY)
    list(APPEND sources ${alone})
  endforeach()
  add_library(header_check OBJECT ${sources})
  target_include_directories(header_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
  if(TARGET tandem_proto)
    target_link_libraries(header_check PRIVATE tandem_proto) # the generated headers
  endif()
  target_compile_options(header_check PRIVATE -O0 -Wno-unused-function)
endfunction()

if(NOT TANDEM_SANITIZE) # the plain build has checked it
  tandem_check_headers()
endif()
