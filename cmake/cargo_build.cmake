# cmake -DCARGO= -DCRATE= -DTARGET_DIR= -DLIBRARY= -DARCHIVE= -P cargo_build.cmake
# Builds the crate in the cargo target folder and copies its static library to ARCHIVE.
# Several checkouts may share the target folder. Cargo tells the same crate in two folders apart by
# the age of its files alone, and gives both libraries one name; so the crate's path goes into what
# cargo names its results by, and the library is copied before another checkout builds.
string(SHA256 checkout ${CRATE})
file(LOCK ${TARGET_DIR}/${LIBRARY}.lock)
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${TARGET_DIR}
          ${CARGO} rustc --release --locked --lib -- -C metadata=${checkout}
  WORKING_DIRECTORY ${CRATE}
  COMMAND_ERROR_IS_FATAL ANY)
file(COPY_FILE ${TARGET_DIR}/release/lib${LIBRARY}.a ${ARCHIVE})
file(TOUCH ${ARCHIVE}) # newer than the sources also when cargo had nothing to do
