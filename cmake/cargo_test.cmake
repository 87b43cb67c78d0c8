# cmake -DCARGO= -DWORK=<folder to make and remove> -P cargo_test.cmake
# Two checkouts share a cargo target folder: each gets the library of its own crate, also one whose
# files are older than what the other has built.
function(write_checkout checkout)
  file(WRITE ${WORK}/${checkout}/Cargo.toml
       "[package]\nname = \"probe\"\nversion = \"0.1.0\"\n[lib]\ncrate-type = [\"staticlib\"]\n"
       "[profile.release]\npanic = \"abort\"\n")
  file(WRITE ${WORK}/${checkout}/Cargo.lock
       "version = 3\n[[package]]\nname = \"probe\"\nversion = \"0.1.0\"\n")
  file(WRITE ${WORK}/${checkout}/src/lib.rs
       "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n"
       "#[no_mangle]\npub static NAME: [u8; 10] = *b\"from_${checkout}\";\n")
endfunction()

function(expect_own_library checkout)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DCARGO=${CARGO} -DCRATE=${WORK}/${checkout} -DTARGET_DIR=${WORK}/target
            -DLIBRARY=probe -DARCHIVE=${WORK}/${checkout}.a
            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cargo_build.cmake
    COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${WORK}/${checkout}.a names REGEX "from_(older|newer)")
  if(NOT names MATCHES "from_${checkout}")
    message(FATAL_ERROR "the checkout '${checkout}' got another library: ${names}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
write_checkout(older)
write_checkout(newer)
expect_own_library(newer)
expect_own_library(older)
expect_own_library(newer)
file(REMOVE_RECURSE ${WORK})
