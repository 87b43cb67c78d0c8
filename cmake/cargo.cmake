# tandem_cargo_library(NAME <target> CRATE <folder> LIBRARY <crate name>)
# An imported static library that cargo builds, copied into the build folder. The dependencies are
# compiled once for all build folders that share a cargo target folder: CARGO_TARGET_DIR if the
# environment sets it, else build/cargo.
function(tandem_cargo_library)
  cmake_parse_arguments(ARG "" "NAME;CRATE;LIBRARY" "" ${ARGN})
  find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin)
  if(NOT CARGO)
    message(FATAL_ERROR "cargo (Rust 1.85 or newer) was not found; ./setup installs it, or configure "
                        "with -DTANDEM_SERVER=OFF to leave out what needs Rust")
  endif()
  if(DEFINED ENV{CARGO_TARGET_DIR})
    set(target_dir $ENV{CARGO_TARGET_DIR})
  else()
    set(target_dir ${CMAKE_SOURCE_DIR}/build/cargo)
  endif()
  set(archive ${CMAKE_CURRENT_BINARY_DIR}/lib${ARG_NAME}.a)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ARG_CRATE}/src/*.rs ${ARG_CRATE}/src/*.jinja)
  add_custom_command(
    OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -DCARGO=${CARGO} -DCRATE=${ARG_CRATE} -DTARGET_DIR=${target_dir}
            -DLIBRARY=${ARG_LIBRARY} -DARCHIVE=${archive}
            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cargo_build.cmake
    DEPENDS ${sources} ${ARG_CRATE}/Cargo.toml ${ARG_CRATE}/Cargo.lock
            ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cargo_build.cmake
    COMMENT "Building the crate ${ARG_LIBRARY} (minutes the first time)"
    USES_TERMINAL # cargo shows its progress; Ninja would show the last step that ended
    VERBATIM)
  add_custom_target(${ARG_NAME}_cargo DEPENDS ${archive})
  add_library(${ARG_NAME} STATIC IMPORTED GLOBAL)
  set_target_properties(${ARG_NAME} PROPERTIES
    IMPORTED_LOCATION ${archive}
    INTERFACE_INCLUDE_DIRECTORIES ${ARG_CRATE}/include
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
  add_dependencies(${ARG_NAME} ${ARG_NAME}_cargo)
endfunction()
