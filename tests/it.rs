mod it {}
