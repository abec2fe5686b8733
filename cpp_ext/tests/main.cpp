// Runs the tests of the native core. The first failure ends the program with status 1.
#include <cstdio>

#include "tests.hpp"

int main() {
    test_core();
    test_json();
    test_min_cut();
    test_model();
    test_parallel();
    test_policy();
    std::puts("6 passed, 0 failed");
    return 0;
}
