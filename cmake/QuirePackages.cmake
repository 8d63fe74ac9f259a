# SPDX-License-Identifier: MIT
# Packages of what QuireInstall.cmake installs: cpack -G DEB, cpack --config CPackSourceConfig.cmake.
if(TARGET quire_store_shared)
  set(quire_store_packages "store:libquire-store${quire_soversion}" storedevelopment:libquire-store-dev)
endif()
set(packages "library:libquire${quire_soversion}" development:libquire-dev ${quire_store_packages} device:quire-llama tools:quire)
set(CPACK_COMPONENTS_ALL)
# The first line is the summary.
set(about "Quire keeps the KV cache of a language model in 2 to 8 bits per value and
computes attention on the compressed bytes, on CPUs.")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "attention on a compressed KV cache - library
${about}
This package has the shared library, for programs that link it.")
set(CPACK_DEBIAN_STORE_DESCRIPTION "attention on a compressed KV cache - store of prompt prefixes
${about}
This package has the library that keeps finished pages on disk and on
Valkey or Redis servers.")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "attention on a compressed KV cache - development files
${about}
This package has headers, the static library, and files for pkg-config
and CMake.")
set(CPACK_DEBIAN_STOREDEVELOPMENT_DESCRIPTION "attention on a compressed KV cache - development files of the store
${about}
This package has the header of libquire_store, and files for pkg-config
and CMake.")
set(CPACK_DEBIAN_DEVICE_DESCRIPTION "attention on a compressed KV cache - device for llama.cpp
${about}
This package has the device that an unmodified llama.cpp loads.")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "attention on a compressed KV cache - command quire
${about}
This package has the command that plans memory, starts llama.cpp programs
with the device, and serves prompts from a store.")
# Debian's own form of a changelog, in every package. SOURCE_DATE_EPOCH sets its date.
set(QUIRE_MAINTAINER "Quire maintainers <quire@localhost>" CACHE STRING "Name and address in the Debian packages")
string(TIMESTAMP package_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/changelog.in "${PROJECT_BINARY_DIR}/changelog" @ONLY)
foreach(package IN LISTS packages)
  string(REGEX MATCH "^([a-z]+):(.*)$" unused "${package}")
  set(component "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  string(TOUPPER "${component}" upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME "${name}")
endforeach()
# For QuirePack.cmake: where the licences are, and what every package has besides.
set(CPACK_QUIRE_DOC_DIR "${quire_doc_dir}")
set(CPACK_QUIRE_DEBIAN_FILES "${PROJECT_SOURCE_DIR}/packaging/debian/copyright" "${PROJECT_BINARY_DIR}/changelog")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_STORE_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_STOREDEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVICE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libquire${quire_soversion} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_STORE_PACKAGE_DEPENDS "libquire${quire_soversion} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_STOREDEVELOPMENT_PACKAGE_DEPENDS
    "libquire-dev (= ${PROJECT_VERSION}), libquire-store${quire_soversion} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "quire-llama")
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
set(CPACK_STRIP_FILES ON)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_PACKAGE_SOURCE quire)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # what packages of other programs will depend on
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/QuirePack.cmake")
set(CPACK_POST_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/QuireControl.cmake")
set(CPACK_STRIP "${CMAKE_STRIP}")
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_CONTACT "${QUIRE_MAINTAINER}")
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME "quire-${PROJECT_VERSION}")
# Folders called build inside of the source, not above it: the checkout itself may lie in one. A dot stands for what a pattern would misread.
string(REGEX REPLACE "[^A-Za-z0-9_/-]" "." source_pattern "${PROJECT_SOURCE_DIR}")
set(CPACK_SOURCE_IGNORE_FILES "^${source_pattern}/(.*/)?build/" "/\\\\.git/" "/\\\\.git$" "__pycache__" "\\\\.swp$" "~$")
include(CPack)
