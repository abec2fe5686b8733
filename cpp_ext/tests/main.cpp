#include <cstdio>

#include "tests.hpp"

int main() {
    test_core();
    test_policy();
    std::puts("2 passed, 0 failed");
    return 0;
}
