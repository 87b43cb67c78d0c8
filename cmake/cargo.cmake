# tandem_cargo_library(NAME <target> CRATE <folder> LIBRARY <crate name>)
# An imported static library that cargo builds. All build folders share one cargo target folder
# (CARGO_TARGET_DIR if the environment sets it, else build/cargo), so the crate compiles once.
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
  set(archive ${target_dir}/release/lib${ARG_LIBRARY}.a)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ARG_CRATE}/src/*.rs)
  add_custom_command(
    OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${target_dir}
            ${CARGO} build --release --locked --lib --quiet
    # Cargo does not touch an up-to-date archive; without this ninja would run it every time.
    COMMAND ${CMAKE_COMMAND} -E touch_nocreate ${archive}
    WORKING_DIRECTORY ${ARG_CRATE}
    DEPENDS ${sources} ${ARG_CRATE}/Cargo.toml ${ARG_CRATE}/Cargo.lock
    COMMENT "Building the crate ${ARG_LIBRARY} (minutes the first time)"
    VERBATIM)
  add_custom_target(${ARG_NAME}_cargo DEPENDS ${archive})
  add_library(${ARG_NAME} STATIC IMPORTED GLOBAL)
  set_target_properties(${ARG_NAME} PROPERTIES
    IMPORTED_LOCATION ${archive}
    INTERFACE_INCLUDE_DIRECTORIES ${ARG_CRATE}/include
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
  add_dependencies(${ARG_NAME} ${ARG_NAME}_cargo)
endfunction()
