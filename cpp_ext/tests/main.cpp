#include <cstdio>

#include "tests.hpp"

int main() {
    test_core();
    test_model();
    test_parallel();
    test_policy();
    std::puts("4 passed, 0 failed");
    return 0;
}
