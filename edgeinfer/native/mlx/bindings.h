// Parts of the extension module that have a file of their own.
#pragma once

#include <nanobind/nanobind.h>

namespace edgeinfer {

void bind_drafts(nanobind::module_& m);

}  // namespace edgeinfer
